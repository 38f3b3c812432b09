"""Remembered: under which names what was measured of a job is kept.

Speeds hold for every job with the same network and batch on the same machine; that numbers are right holds only for the
same data, weights and settings. So a verdict is kept under both, and checked again where only the first is known.
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
from runtime.plan import evidence
from runtime.plan.evidence import Measurement
from runtime.training.run import workload
from runtime.tuning import process_settings

LOOKED_AT = 64
"""Samples whose content counts: the scale of data shows in any of them."""
UNCHANGING = ("name", "checkpoint", "limits", "monitor")
"""Parts of a spec that no step computes anything with."""


def speed(job: Job, hardware: Hardware, dataset: Dataset, network: Model, apart_too: bool) -> str:
    """The name for speeds; a run of twice the length may afford, and gain, what a short one cannot."""
    train = job.train
    shapes = {name: list(value.shape) for name, value in network.module.state_dict().items()}
    steps = -(-len(dataset.train) // train.batch) * train.epochs
    fixed = [
        train.optimizer.name,
        train.deterministic,
        str(train.loss),
        str(getattr(job.data, "augment", None)),
        sorted((key, str(value)) for key, value in job.optimize.items()),
        min(steps, train.steps or steps).bit_length(),
        apart_too,
    ]
    return evidence.key(hardware, workload(dataset, network.module), train.batch, shapes, fixed)


def numbers(name: str, job: Job, dataset: Dataset, network: Model) -> str | None:
    """The name for numbers below that for speeds; None if it cannot be told whether they would be the same.

    It holds all that the first steps depend on: settings, preprocessing, samples, first weights and own code.
    """
    if job.task == "python":  # network and loss are a program's own, whose code is not known here
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
    """Keep what was found; what is fixed when a process starts also where the supervisor finds it, without torch.

    Args:
        job: the spec.
        hardware: whose cache it goes to.
        names: for speeds and for numbers.
        found: the verdicts.
        say: is told if they cannot be kept.
    """
    started = {key: row for key, row in found.items() if key in process_settings.names()}
    try:
        for name in filter(None, names):
            evidence.store(hardware, name, found)
        if started:
            evidence.store(hardware, evidence.early(hardware, job), started)
    except (OSError, StorageError) as error:
        say(f"tune: what was measured is not kept: {error}")


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
