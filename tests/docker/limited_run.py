"""A job trained in a container with a limit of memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.docker.conftest import Run
from tests.paths import ROOT

TEXT = """
name: large
task: image-classification
data: {train: images.npz, validation: 0.1}
model: {name: small-cnn, width: 8}
train: {epochs: 1, steps: 2, batch_size: 64}
checkpoint: {every: 1 steps}
optimize: {cpu_threads: 1, measure: off}
"""
"""Activations of a whole batch are larger than everything else; few channels of large images take little time."""


@pytest.fixture
def job(tmp_path: Path) -> Path:
    labels = np.arange(150) % 3
    images = np.random.default_rng(0).integers(0, 255, (150, 128, 128), dtype=np.uint8)
    np.savez(tmp_path / "images.npz", images=images, labels=labels)
    (tmp_path / "large.yaml").write_text(TEXT)
    for folder in (tmp_path, tmp_path / "runs"):
        folder.mkdir(exist_ok=True)
        folder.chmod(0o777)
    return tmp_path


def train(container: Run, job: Path, memory: int | None, *options: str) -> tuple[int, str]:
    """Train in a container of so many bytes without swap, with the checkout's own code."""
    limits = (f"--memory={memory}", f"--memory-swap={memory}") if memory else ()
    done = container(
        "train",
        "/job/large.yaml",
        "--runs",
        "/job/runs",
        *options,
        options=(*limits, "-v", f"{job}:/job", "-v", f"{ROOT}/runtime:/opt/drivetrain/runtime:ro"),
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout + done.stderr


def read_decision(run: Path, name: str) -> Any:
    rows = json.loads((run / "plan.json").read_text())["decisions"]
    return next(row["value"] for row in rows if row["name"] == name)
