"""A small job with data, network and loss of one's own: files in a folder, each of which a test can replace."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

from drivetrain.job import Job
from drivetrain.job_spec import load_job as job_spec

JOB = """
name: tiny
task: custom
data: {{file: my_data.py{data}}}
model: {{file: my_model.py{model}}}
train: {{epochs: 2, batch_size: 16{train}}}
checkpoint: {{every: epoch{checkpoint}}}
optimize: {{cpu_threads: 1}}
"""
DATA = """
import torch

def points(samples, seed):
    x = torch.randn(samples, 4, generator=torch.Generator().manual_seed(seed))
    return x, (x.sum(dim=1) > 0).long()

def load(samples=96):
    return points(samples, 0), points(samples // 3, 1)
"""
MODEL = """
from torch import nn

class Net(nn.Module):
    def __init__(self, width, outputs):
        super().__init__()
        self.body = nn.Linear(4, width)
        self.last = nn.Linear(width, outputs)

    def forward(self, x):
        return self.last(self.body(x).relu())

def build(outputs, width=8):
    return Net(width, outputs)
"""
LOSS = """
from torch.nn import functional

def loss():
    return functional.cross_entropy
"""

ITEMS = """
import torch
from torch.utils.data import Dataset

class Points(Dataset):
    def __init__(self, size):
        self.size = size
    def __len__(self):
        return self.size
    def __getitem__(self, i):
        {item}

def load():
    return Points({size}), Points(8)
"""
LOADS = "import numpy as np\nimport torch\nfrom torch.utils.data import *\n\ndef load():\n    {body}\n"


def write_job(folder: Path, files: dict[str, str] | None = None, **parts: str) -> Path:
    """The files of the job, some of them replaced; `parts` are added to data, model, train or checkpoint."""
    every = {"my_data.py": DATA, "my_model.py": MODEL, "my_loss.py": LOSS} | (files or {})
    for name, text in every.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(dedent(text).strip() + "\n")
    added = {key: f", {parts[key]}" if key in parts else "" for key in ("data", "model", "train", "checkpoint")}
    path = folder / "job.yaml"
    path.write_text(JOB.format(**added).lstrip())
    return path


def job(folder: Path, files: dict[str, str] | None = None, **parts: str) -> Job:
    """The checked spec of these files."""
    return job_spec.load(write_job(folder, files, **parts))


def define_items(item: str, size: int = 24) -> dict[str, str]:
    """A data file with a map-style dataset whose items are `item`."""
    return {"my_data.py": ITEMS.format(item=item, size=size)}


def define_load(body: str) -> dict[str, str]:
    """A data file whose function has this body."""
    return {"my_data.py": LOADS.format(body=body)}


def define_arrays(arrays: str) -> dict[str, str]:
    """A data file that gives the same arrays for training and for validation."""
    return define_load(f"part = {arrays}\n    return part, part")
