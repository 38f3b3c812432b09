"""Cache keys under which the measurements of a job are stored.

Speeds are valid for every job with the same network and batch size on the same machine. Numerical checks are valid only
for the same data, weights and settings. So a result is stored under both keys, and its numbers are checked again if
only the key of the speeds matches.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from runtime.data.dataset import Dataset
from runtime.errors import StorageError
from runtime.hardware.facts import Hardware
from runtime.job import Job
from runtime.models.build import Model
from runtime.models.inspection import inspect_workload
from runtime.plan import evidence
from runtime.plan.evidence import Measurement
from runtime.tuning import process_settings

LOOKED_AT = 64
"""Samples whose content enters the key; another scale of the data shows in any of them."""
UNCHANGING = ("name", "checkpoint", "limits", "monitor", "sweep")
"""Parts of a spec that do not affect any step."""


def speed(job: Job, hardware: Hardware, dataset: Dataset, network: Model, apart_too: bool) -> str:
    """The key for speeds. It includes the length of the run, since a longer run has a larger budget and gains more."""
    train = job.train
    shapes = {name: list(value.shape) for name, value in network.module.state_dict().items()}
    steps = -(-len(dataset.train) // train.batch) * train.epochs
    fixed = [
        train.optimizer.kind,
        train.is_deterministic(on_gpu=hardware.gpu is not None),
        str(train.loss),
        str(getattr(job.data, "augment", None)),
        sorted((key, str(value)) for key, value in job.optimize.items()),
        min(steps, train.steps or steps).bit_length(),
        apart_too,
    ]
    return evidence.key(hardware, inspect_workload(dataset, network.module), train.batch, shapes, fixed)


def numbers(name: str, job: Job, dataset: Dataset, network: Model) -> str | None:
    """The key for numerical checks, below that for speeds; None if it cannot be known whether they would be the same.

    It covers everything that the first steps depend on: settings, preprocessing, samples, initial weights and user
    code.
    """
    if job.task == "python":  # network and loss come from a Python program, whose code cannot be hashed
        return None
    spec = {key: value for key, value in job.dumped().items() if key not in UNCHANGING}
    code = network.code.digests() if network.code else {}
    parts = [name, spec, dataset.preprocessing, code, _samples(dataset), _tensors(network.module.state_dict())]
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:32]


def keep(
    job: Job,
    hardware: Hardware,
    names: tuple[str, str | None],
    found: Mapping[str, Measurement],
    say: Callable[[str], None],
) -> None:
    """Store measurements; process settings also where the supervisor finds them without torch.

    Args:
        job: the spec.
        hardware: its cache is used.
        names: the keys for speeds and for numerical checks.
        found: the results.
        say: reports it if they cannot be stored.
    """
    started = {key: row for key, row in found.items() if key in process_settings.names()}
    try:
        for name in filter(None, names):
            evidence.store(hardware, name, found)
        if started:
            evidence.store(hardware, evidence.early(hardware, job), started)
    except (OSError, StorageError) as error:
        say(f"tune: the measurements could not be stored: {error}")


def _samples(dataset: Dataset) -> str:
    ids = np.arange(min(LOOKED_AT, len(dataset.train)), dtype=np.int64)
    targets = {name: values[torch.from_numpy(ids)] for name, values in dataset.train.targets.items()}
    return _tensors({str(number): x for number, x in enumerate(dataset.train.gather(ids))} | targets)


def _tensors(tensors: Mapping[str, Any]) -> str:
    digest = hashlib.sha256()
    for name, tensor in tensors.items():
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
