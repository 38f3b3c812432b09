"""Job specs for the tests of launching."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from runtime.hardware import detect
from runtime.job import Job
from runtime.job_spec import load as job_spec
from runtime.job_spec.yaml_file import parse
from runtime.launch import container
from tests.hardware.test_nvidia import GIB, Nvml

TEXT = "name: a\ntask: image-classification\ndata: {train: x}\n"

HOST = {"NCPU": 16, "MemTotal": 64 * GIB, "Runtimes": {"runc": {}, "nvidia": {}}}


def job(limits: str = "{}") -> Job:
    return job_spec.check(parse(f"{TEXT}limits: {limits}\n", "job.yaml"))


def word(
    monkeypatch: pytest.MonkeyPatch,
    root: Path,
    nvml: Nvml | None,
    limits: str = "{}",
    environ: Mapping[str, str] | None = None,
) -> str:
    """The image that a host with this NVML gets."""
    here = detect.detect(root, root, environ=environ or {}, mask={0}, nvml=nvml)
    monkeypatch.setattr(container, "detect", lambda runs: here)
    return container._word(container.LaunchRequest(Path("job.yaml"), device="gpu"), job(limits))
