"""Trains a run whose model starts from the model of another run."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import torch

from drivetrain.data.load_data import load
from drivetrain.data.loader.batches import fetch_in_order
from drivetrain.job import Job
from drivetrain.job_spec import load_job as job_spec
from drivetrain.models.build import BuiltModel
from tests.task_cases import COMMON, Case

FIRST = "run"
"""The folder of the first run, relative to the job."""


def follow(folder: Path, case: Case, model: str = f"{{from: {FIRST}}}", *changes: tuple[str, str]) -> Job:
    """The job of a case with another `model:`, in the same folder."""
    text = re.sub(r"^model:.*$", "", case.text, flags=re.MULTILINE) + f"model: {model}\n"
    for before, after in changes:
        assert before in text
        text = text.replace(before, after)
    (folder / "next.yaml").write_text(f"name: next\n{text}{COMMON}")
    return job_spec.load(folder / "next.yaml")


@torch.inference_mode()
def compute_outputs(job: Job, model: BuiltModel) -> dict[str, torch.Tensor]:
    """The outputs of an untrained network on the validation data of its job."""
    dataset = load(job)
    model.module.eval()
    parts: dict[str, list[torch.Tensor]] = {name: [] for name in dataset.heads}
    for batch in fetch_in_order(dataset.validation, 7):
        batch_outputs = model.module(*dataset.prepare(batch.inputs, batch.ids, None))
        for name, head_outputs in parts.items():
            head_outputs.append(batch_outputs if isinstance(batch_outputs, torch.Tensor) else batch_outputs[name])
    return {name: torch.cat(head_outputs) for name, head_outputs in parts.items()}


def rename_classes(folder: Path) -> None:
    """Give every class of the image arrays another name."""
    for part in ("train", "held"):
        with np.load(folder / f"{part}.npz") as data:
            images, labels = data["images"], data["labels"]
        np.savez(folder / f"{part}.npz", images=images, labels=labels + 1)
