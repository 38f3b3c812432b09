"""A small image job, trained by the command line in a process of its own, and what its run folder holds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch

from tests.paths import ROOT

TEXT = """
name: tiny
task: image-classification
data: {train: images.npz, validation: 0.25}
model: {name: small-cnn, width: 4, dropout: 0.1}
train: {epochs: 4, batch_size: 16, ema: 0.9}
checkpoint: {every: 3 steps}
optimize: {cpu_threads: 1}
"""


def write_images(path: Path) -> None:
    """Write a small data set of three classes."""
    labels = np.arange(160) % 3
    pixels = (np.random.default_rng(0).random((160, 8, 8)) * 120).astype(np.uint8)
    pixels[np.arange(160), labels * 2] += 120
    np.savez(path, images=pixels, labels=labels)


def write_job(folder: Path) -> Path:
    """Write the job and its data; the path of the job."""
    write_images(folder / "images.npz")
    path = folder / "tiny.yaml"
    path.write_text(TEXT)
    return path


def command(job: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", "drivetrain", "train", str(job), "--runs", str(job.parent / "runs"), *options]


def train(job: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(job, *options), cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)


def read_rows(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def load_weights(run: Path) -> dict[str, torch.Tensor]:
    return safetensors.torch.load_file(run / "model" / "model.safetensors")


def have_same_weights(first: Path, second: Path) -> bool:
    one, two = load_weights(first), load_weights(second)
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


def find_follower(supervisor: int) -> int:
    """The process that does not lead."""
    children = Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split()
    pids = [int(pid) for pid in children if b"ranks/1" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    assert len(pids) == 1
    return pids[0]
