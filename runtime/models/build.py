"""A job's network: built from the spec for the data at hand, and rebuilt from what `model/` stores."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from runtime import draws
from runtime.data.dataset import Dataset
from runtime.job import Job
from runtime.job.job import ImageJob
from runtime.job.model import Freeze
from runtime.models import images


@dataclass
class Model:
    """A network and how to build it again."""

    module: nn.Module
    builder: str
    """Key of BUILDERS."""
    arguments: dict[str, Any]
    """Plain JSON arguments of the builder."""
    freeze: Freeze


BUILDERS: dict[str, Callable[..., nn.Module]] = {"images": images.build}


def build(job: Job, dataset: Dataset) -> Model:
    """The network of a job, its first weights a function of the job's seed."""
    torch.manual_seed(draws.key(job.train.seed, "weights"))
    if isinstance(job, ImageJob):
        return _image_network(job, dataset)
    raise AssertionError(f"no network for {job.task}")


def _image_network(job: ImageJob, dataset: Dataset) -> Model:
    spec = job.model
    arguments = {
        "name": spec.name, "channels": dataset.preprocessing["channels"], "classes": dataset.heads[""].outputs,
        "image_size": dataset.preprocessing["image_size"], "width": spec.width, "dropout": spec.dropout,
        "stem": spec.stem,
    }  # fmt: skip
    return Model(images.build(**arguments), "images", arguments, spec.freeze)
