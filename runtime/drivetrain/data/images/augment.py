"""Random augmentation of training images, on whole batches.

Order: resized crop, padded crop, flip, RandAugment, color jitter (brightness, contrast, saturation), erasing. Areas
that an image does not cover (padding, warps, erased patches) get the mean color of the training images, which
normalization maps to 0. All random numbers depend on (seed, purpose, epoch, sample id) only, with `views` set, they
repeat after `views` epochs.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from drivetrain.data import stateless_random
from drivetrain.data.images.randaugment import Floats, brightness, contrast, crop, randaugment, saturation
from drivetrain.data.stateless_random import Ids
from drivetrain.data.to_device import onto
from drivetrain.job.data import ColorJitter, Erasing, ImageAugment

MIN_ASPECT_RATIO = 0.3
"""Smallest width / height of an erased patch; its inverse is the largest (Zhong et al. 2020)."""


@dataclass(frozen=True)
class Augment:
    """The augmentations that a job requests."""

    spec: ImageAugment
    seed: int
    fill: tuple[float, ...]
    """Mean color of the training images."""

    def __call__(self, pixels: Tensor, ids: Ids, epoch: int) -> Tensor:
        """Augment images, shape (N, C, S, S), from 0 to 1; `pixels` itself is not modified."""
        spec = self.spec
        draw = partial(_draw, self.seed, epoch % spec.views if spec.views else epoch, ids)
        fill = onto(pixels.device, self.fill, pixels.dtype).view(-1, 1, 1)
        if spec.resized_crop:
            pixels = crop(pixels, draw("resized_crop", 4), spec.resized_crop.scale, spec.resized_crop.ratio)
        if spec.crop_padding:
            pixels = crop_padded(pixels, draw("crop_padding", 2), spec.crop_padding, fill)
        if spec.flip:
            pixels = torch.where(_per_image(draw("flip", 1) < 0.5, pixels), pixels.flip(3), pixels)
        if spec.randaugment:
            drawn = draw("randaugment", 2 * spec.randaugment.num_ops)
            pixels = randaugment(pixels, drawn, spec.randaugment.magnitude, fill)
        if spec.color_jitter:
            pixels = jitter(pixels, draw("color_jitter", 3), spec.color_jitter)
        if spec.erasing:
            pixels = erase(pixels, draw("erasing", 5), spec.erasing, fill)
        return pixels


def crop_padded(pixels: Tensor, drawn: Floats, padding: int, fill: Tensor) -> Tensor:
    """Shift each image by up to `padding` pixels in each direction; `drawn` has shape (N, 2)."""
    count, channels, height, width = pixels.shape
    padded = fill.expand(count, channels, height + 2 * padding, width + 2 * padding).clone()
    padded[:, :, padding : padding + height, padding : padding + width] = pixels
    top, left = onto(pixels.device, (drawn.T * (2 * padding + 1)).astype(np.int64))
    # All possible crops are views of the same memory, shape (N, C, 2 padding + 1, 2 padding + 1, height, width): one
    # kernel copies the drawn ones.
    crops = padded.unfold(2, height, 1).unfold(3, width, 1)
    return crops[torch.arange(count, device=pixels.device), :, top, left]


def jitter(pixels: Tensor, drawn: Floats, spec: ColorJitter) -> Tensor:
    """Change brightness, contrast and saturation, each by a factor in [1 - x, 1 + x]; `drawn` has shape (N, 3)."""
    changes = {brightness: spec.brightness, contrast: spec.contrast, saturation: spec.saturation}
    for (change, max_change), draw in zip(changes.items(), drawn.T, strict=True):
        if max_change:
            pixels = change(pixels, _per_image(1 + max_change * (2 * draw - 1), pixels).to(pixels.dtype))
    return pixels


def erase(pixels: Tensor, drawn: Floats, spec: Erasing, fill: Tensor) -> Tensor:
    """Erase a patch in some images; `drawn` (chance, area, aspect ratio, y, x) has shape (N, 5)."""
    height, width = pixels.shape[2:]
    chance, area_draw, ratio_draw, y, x = drawn.T
    area = spec.area[0] + (spec.area[1] - spec.area[0]) * area_draw
    ratio = np.exp(np.log(MIN_ASPECT_RATIO) * (2 * ratio_draw - 1))
    patch_height = np.clip(np.rint(np.sqrt(area / ratio) * height), 1, height)
    patch_width = np.clip(np.rint(np.sqrt(area * ratio) * width), 1, width)
    top = np.floor(y * (height - patch_height + 1))
    first_x = np.floor(x * (width - patch_width + 1))
    # A patch of height 0 erases nothing.
    patch_height = np.where(chance < spec.probability, patch_height, 0)
    # Compared on the device: four numbers an image are copied, not a mask of its size.
    edges = onto(pixels.device, np.stack([top, top + patch_height, first_x, first_x + patch_width]).astype(np.int64))
    first_line, end_line, first_column, end_column = edges[:, :, None]
    lines, columns = torch.arange(height, device=pixels.device), torch.arange(width, device=pixels.device)
    vertical = (lines >= first_line) & (lines < end_line)
    horizontal = (columns >= first_column) & (columns < end_column)
    return torch.where((vertical[:, :, None] & horizontal[:, None, :])[:, None], fill, pixels)


def _draw(seed: int, epoch: int, ids: Ids, purpose: str, count: int) -> Floats:
    """Random numbers in [0, 1), shape (N, count); other ones for each purpose."""
    return stateless_random.draw_uniform(seed, purpose, epoch, ids, count)


def _per_image(values: Floats | npt.NDArray[np.bool_], like: Tensor) -> Tensor:
    """One value per image, reshaped to (N, 1, 1, 1)."""
    return onto(like.device, values).view(-1, 1, 1, 1)
