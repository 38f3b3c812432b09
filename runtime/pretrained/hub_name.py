"""What a job says about the origin of pretrained weights: a local folder, or a name on the Hugging Face hub."""

from __future__ import annotations

import os

from runtime.job import Job
from runtime.job.model import RESNET_WEIGHTS, ImageNetwork


def given(job: Job) -> str:
    """The folder or name of pretrained weights; empty if the job names none."""
    model = getattr(job, "model", None)
    if isinstance(model, ImageNetwork):
        return RESNET_WEIGHTS[model.name] if model.pretrained is True else model.pretrained or ""
    return str(getattr(model, "name", "")) if getattr(model, "source", None) == "transformers" else ""


def key(job: Job) -> tuple[str, ...]:
    """The key that says it."""
    return ("model", "pretrained" if isinstance(getattr(job, "model", None), ImageNetwork) else "name")


def of_hub(job: Job) -> str | None:
    """The name on the hub; None if the job needs nothing from there."""
    name = given(job)
    return name if name and not os.path.exists(job.resolve(name)) else None
