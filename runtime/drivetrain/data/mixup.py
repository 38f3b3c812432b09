"""Mixup and cutmix of a whole batch, before it is split into micro-batches.

All random numbers depend on (seed, step) only. If a job has both, each step picks one with equal probability, and its
own probability then decides whether the step is mixed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from drivetrain.data import stateless_random
from drivetrain.data.dataset import Batch, Head, Inputs, Targets
from drivetrain.data.to_device import onto
from drivetrain.job import Job
from drivetrain.job.data import Cutmix, Mixup

Box = tuple[int, int, int, int]
"""Top, bottom, left, right, in pixels; bottom and right are exclusive."""


def mixes(job: Job) -> bool:
    """Whether the job has mixup or cutmix."""
    augment = getattr(job.data, "augment", None)
    return bool(getattr(augment, "mixup", None) or getattr(augment, "cutmix", None))


def mix(batch: Batch, heads: Mapping[str, Head], job: Job, step: int) -> Batch:
    """Mix the batch as the job's `data.augment` says; unchanged if it has neither, or this step is not selected."""
    augment = getattr(job.data, "augment", None)
    mixup, cutmix = getattr(augment, "mixup", None), getattr(augment, "cutmix", None)
    inputs, targets = mix_batch(batch.inputs, batch.targets, heads, job.train.seed, step, mixup, cutmix)
    return replace(batch, inputs=inputs, targets=targets)


def mix_batch(
    inputs: Inputs,
    targets: Targets,
    heads: Mapping[str, Head],
    seed: int,
    step: int,
    mixup: Mixup | None = None,
    cutmix: Cutmix | None = None,
) -> tuple[Inputs, Targets]:
    """Blend each sample with another one of the batch.

    Args:
        inputs: float tensors of shape (N, ...); for cutmix (N, C, H, W).
        targets: by head, class indices (N,), probabilities (N, classes) or numbers (N, columns).
        heads: the outputs, for their number of classes.
        seed: the run's seed.
        step: the optimizer step.
        mixup: share * x + (1 - share) * partner, with share from Beta(alpha, alpha) (Zhang et al. 2018).
        cutmix: a rectangle is replaced by the partner's (Yun et al. 2019); share is the part of the image that is kept.

    Returns:
        Inputs of the same shapes; targets share * y + (1 - share) * partner, with class indices turned into
        probabilities. Both are unchanged if the step is not mixed.
    """
    drawn = stateless_random.generator(seed, "mixup", step)
    options = [option for option in (mixup, cutmix) if option is not None]
    if not options or len(inputs[0]) < 2:
        return inputs, targets
    option = options[int(drawn.integers(len(options)))]
    if drawn.random() >= option.probability:
        return inputs, targets
    share = float(drawn.beta(option.alpha, option.alpha))
    partner = onto(inputs[0].device, drawn.permutation(len(inputs[0])))
    if isinstance(option, Mixup):
        inputs = tuple(blend(x, x[partner], share) for x in inputs)
    else:
        box = rectangle(drawn, inputs[0].shape[-2], inputs[0].shape[-1], share)
        inputs = tuple(_paste(x, x[partner], box) for x in inputs)
        share = 1 - (box[1] - box[0]) * (box[3] - box[2]) / (inputs[0].shape[-2] * inputs[0].shape[-1])
    soft = {name: soften(y, heads[name]) for name, y in targets.items()}
    return inputs, {name: blend(y, y[partner], share) for name, y in soft.items()}


def blend(values: Tensor, partners: Tensor, share: float) -> Tensor:
    """share * values + (1 - share) * others."""
    return torch.lerp(partners, values, share)


def soften(targets: Tensor, head: Head) -> Tensor:
    """Class indices (N,) as probabilities (N, classes) float32; other targets unchanged."""
    if targets.is_floating_point():
        return targets
    return functional.one_hot(targets, head.outputs).to(torch.float32)


def rectangle(drawn: np.random.Generator, height: int, width: int, share: float) -> Box:
    """A rectangle with the image's aspect ratio and 1 - share of its area, centered at random and clipped to the image."""
    half = 0.5 * float(np.sqrt(1 - share))
    y, x = int(drawn.integers(height)), int(drawn.integers(width))
    tall, wide = half * height, half * width
    return (max(0, round(y - tall)), min(height, round(y + tall)), max(0, round(x - wide)), min(width, round(x + wide)))


def _paste(images: Tensor, partners: Tensor, box: Box) -> Tensor:
    top, bottom, first_column, right = box
    images = images.clone()
    images[..., top:bottom, first_column:right] = partners[..., top:bottom, first_column:right]
    return images
