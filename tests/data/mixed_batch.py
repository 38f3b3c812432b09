"""Mixes a batch as a job with these methods would."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from drivetrain.data.dataset import Batch, Head, Inputs, Targets
from drivetrain.data.mixup import mix
from drivetrain.job import Job
from drivetrain.job.data import Cutmix, Mixup


def mix_batch(
    inputs: Inputs,
    targets: Targets,
    heads: Mapping[str, Head],
    seed: int,
    step: int,
    mixup: Mixup | None = None,
    cutmix: Cutmix | None = None,
) -> tuple[Inputs, Targets]:
    augment = SimpleNamespace(mixup=mixup, cutmix=cutmix)
    job: Any = SimpleNamespace(train=SimpleNamespace(seed=seed), data=SimpleNamespace(augment=augment))
    mixed = mix(Batch(np.arange(len(inputs[0])), inputs, targets), heads, cast(Job, job), step)
    return mixed.inputs, mixed.targets
