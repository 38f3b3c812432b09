"""Finds what a job needs from the Hugging Face hub: pretrained weights, unless they are in a local folder, and data."""

from __future__ import annotations

import os

from drivetrain.job import Job, dot_key
from drivetrain.job.hub_address import is_on_hub
from drivetrain.job.model import RESNET_WEIGHTS, ImageNetwork, ImageTimm
from drivetrain.storage.remote_address import is_remote


def find_weights_name(job: Job) -> str:
    """Find the folder or name of pretrained weights; empty if the job names none."""
    model = getattr(job, "model", None)
    if isinstance(model, ImageNetwork | ImageTimm) and model.pretrained is not True:
        return model.pretrained or ""
    if isinstance(model, ImageTimm):
        return f"timm/{model.name}"
    if isinstance(model, ImageNetwork):
        return RESNET_WEIGHTS.get(model.name, "")
    return str(getattr(model, "name", "")) if getattr(model, "source", None) == "transformers" else ""


def find_weights_key(job: Job) -> tuple[str, ...]:
    """Find the key of the job that names the pretrained weights."""
    return ("model", "pretrained" if isinstance(getattr(job, "model", None), ImageNetwork | ImageTimm) else "name")


def find_hub_weights(job: Job) -> str | None:
    """Find the name on the hub of the pretrained weights; None if the job needs none from there."""
    name = find_weights_name(job)
    return name if name and not is_remote(name) and not os.path.exists(job.resolve(name)) else None


def list_hub_data(job: Job) -> list[tuple[str, str]]:
    """List the keys and addresses of a job's data on the hub."""
    return [(dot_key(key), text) for key, text in job.data_paths() if is_on_hub(text)]
