"""Job specs for the tests of launching."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from drivetrain.hardware import detect
from drivetrain.job import Job
from drivetrain.job_spec import load_job as job_spec
from drivetrain.job_spec.yaml_file import parse
from drivetrain.launch import container
from tests.nvml_double import GIB, Nvml

TEXT = "name: a\ntask: image-classification\ndata: {train: x}\n"

HOST = {"NCPU": 16, "MemTotal": 64 * GIB, "Runtimes": {"runc": {}, "nvidia": {}}}


def check_job(limits: str = "{}") -> Job:
    return job_spec.check(parse(f"{TEXT}limits: {limits}\n", "job.yaml"))


def choose_image(
    monkeypatch: pytest.MonkeyPatch,
    root: Path,
    nvml: Nvml | None,
    limits: str = "{}",
    environ: Mapping[str, str] | None = None,
) -> str:
    """The image that a host with this NVML gets."""
    host = detect.detect(root, root, environ=environ or {}, mask={0}, nvml=nvml)
    monkeypatch.setattr(container, "detect", lambda runs: host)
    return container._choose_variant(container.LaunchRequest(Path("job.yaml"), device="gpu"), check_job(limits))
