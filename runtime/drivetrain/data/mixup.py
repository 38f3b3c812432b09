"""Augments a whole batch with mixup or cutmix, before it is split into micro-batches.

All random numbers depend on (seed, step) only. If a job has both methods, each step picks one method with equal
probability; the probability that the job gives for that method then decides whether the step is mixed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from drivetrain.data import stateless_random
from drivetrain.data.dataset import Batch, Head, onto
from drivetrain.job import Job
from drivetrain.job.data import Cutmix, Mixup

Box = tuple[int, int, int, int]
"""Top, bottom, left and right edge, in pixels; bottom and right are exclusive."""


def uses_mixing(job: Job) -> bool:
    """Return whether the job has mixup or cutmix."""
    augment = getattr(job.data, "augment", None)
    return bool(getattr(augment, "mixup", None) or getattr(augment, "cutmix", None))


def mix(batch: Batch, heads: Mapping[str, Head], job: Job, step: int) -> Batch:
    """Blend each sample with another sample of the batch, according to the job's `data.augment`.

    Mixup returns share * x + (1 - share) * partner, with share from Beta(alpha, alpha) (Zhang et al. 2018). Cutmix
    replaces a rectangle with the partner's (Yun et al. 2019); share is then the kept part of the image (N, C, H, W).

    Returns:
        Inputs of the same shapes; targets share * y + (1 - share) * partner, with class indices turned into
        probabilities. The batch itself without either method, or if the step is not mixed.
    """
    augment, inputs = getattr(job.data, "augment", None), batch.inputs
    named = (getattr(augment, name, None) for name in ("mixup", "cutmix"))
    methods = [method for method in named if method is not None]
    rng = stateless_random.make_generator(job.train.seed, "mixup", step)
    if not methods or len(inputs[0]) < 2:
        return batch
    method: Mixup | Cutmix = methods[int(rng.integers(len(methods)))]
    if rng.random() >= method.probability:
        return batch
    share = float(rng.beta(method.alpha, method.alpha))
    partner = onto(inputs[0].device, rng.permutation(len(inputs[0])))
    if isinstance(method, Mixup):
        inputs = tuple(blend(x, x[partner], share) for x in inputs)
    else:
        box = draw_rectangle(rng, inputs[0].shape[-2], inputs[0].shape[-1], share)
        inputs = tuple(_paste_rectangle(x, x[partner], box) for x in inputs)
        # The kept share of the image after rounding and clipping the rectangle.
        share = 1 - (box[1] - box[0]) * (box[3] - box[2]) / (inputs[0].shape[-2] * inputs[0].shape[-1])
    # Class indices become probabilities.
    soft_targets = {
        name: y if y.is_floating_point() else functional.one_hot(y, heads[name].outputs).to(torch.float32)
        for name, y in batch.targets.items()
    }
    return replace(
        batch, inputs=inputs, targets={name: blend(y, y[partner], share) for name, y in soft_targets.items()}
    )


def blend(values: Tensor, partners: Tensor, share: float) -> Tensor:
    """Compute share * values + (1 - share) * partners."""
    return torch.lerp(partners, values, share)


def draw_rectangle(rng: np.random.Generator, height: int, width: int, share: float) -> Box:
    """Draw a rectangle with the image's aspect ratio and 1 - share of its area, centered at random and clipped."""
    half_scale = 0.5 * float(np.sqrt(1 - share))
    center_y, center_x = int(rng.integers(height)), int(rng.integers(width))
    half_height, half_width = half_scale * height, half_scale * width
    return (
        max(0, round(center_y - half_height)),
        min(height, round(center_y + half_height)),
        max(0, round(center_x - half_width)),
        min(width, round(center_x + half_width)),
    )


def _paste_rectangle(images: Tensor, partners: Tensor, box: Box) -> Tensor:
    top, bottom, left_edge, right = box
    images = images.clone()
    images[..., top:bottom, left_edge:right] = partners[..., top:bottom, left_edge:right]
    return images
