"""What the doctor reads of a machine."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from drivetrain.cli.doctor.snapshot import Snapshot
from drivetrain.hardware import facts as hardware
from drivetrain.launch import image_contents
from tests.paths import ROOT

NOW = 1.9e9
ANSWERS = {
    "docker --version": "Docker version 28.2.2, build e6534b4",
    "docker version": json.dumps({"Server": {"Version": "28.2.2"}}),
    "docker compose": "2.36.0",
    "docker buildx": "github.com/docker/buildx 0.13.1 0.13.1-3",
    "nvidia-ctk --version": "NVIDIA Container Toolkit CLI version 1.18.0\ncommit: f202b80a9b9d0db00d9b1d73c0128c8962c55f4d",
}
POOL = {"user_api": "openmp", "internal_api": "openmp", "prefix": "libgomp", "version": None, "num_threads": 2}
LOADED: dict[str, Any] = {"threads": 2, "instructions": "AVX2", "cpus": 16, "gpus": 1, "pools": [POOL]}


def describe_image(created: str = "2030-03-01T10:00:00.123456789Z", contents: str = "unknown") -> str:
    labels = {"org.opencontainers.image.revision": "37dd950", image_contents.LABEL: contents}
    return json.dumps([{"Created": created, "Config": {"Labels": labels}}])


def snapshot(tmp_path: Path, machine: str, changes: dict[str, Any], **other_fields: Any) -> Snapshot:
    """A healthy machine with some facts (`part.name`), some answers and some of the rest changed."""
    machine_hardware = hardware.read_hardware(ROOT / f"tests/machines/{machine}.json")
    torch = hardware.Torch(version="2.13.0", cuda="13.0" if machine_hardware.gpus else None)
    machine_hardware = replace(
        machine_hardware, torch=torch, compiler="/usr/bin/g++", place=other_fields.pop("place", "host")
    )
    for key, value in changes.items():
        part, _, name = key.partition(".")
        if name:
            inner = getattr(machine_hardware, part)
            value = (replace(inner[0], **{name: value}),) if part == "gpus" else replace(inner, **{name: value})
        machine_hardware = replace(machine_hardware, **{part: value})
    project_files = "\n".join(os.listdir(ROOT))  # what a container sees of the project
    answers = {
        **ANSWERS,
        "docker image": describe_image(),
        "docker run": project_files,
        **other_fields.pop("answers", {}),
    }

    def answer(command: Sequence[str]) -> str | None:
        return answers.get(" ".join(command[:2]))

    runs = tmp_path / "runs"
    runs.mkdir(exist_ok=True)
    (runs / "digits-001").mkdir(exist_ok=True)
    facts: dict[str, Any] = {
        "environ": {},
        "runs": runs,
        "project": ROOT,
        "uid": os.getuid(),
        "run": answer,
        "now": NOW,
        "disk": lambda path: (500 * 2**30, 200 * 2**30),
        "port_taken": lambda port: False,
        "loaded": LOADED,
    }
    return Snapshot(hardware=machine_hardware, **(facts | other_fields))
