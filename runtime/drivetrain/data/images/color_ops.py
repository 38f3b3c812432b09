"""Color operations on batches of images with pixels from 0 to 1.

They follow Pillow's ImageEnhance and ImageOps. `factor` has shape (N, 1, 1, 1); 1 changes nothing. Sums over an image
use integers, so that they do not depend on how a batch is summed.
"""

from __future__ import annotations

import torch
from torch import Tensor

from drivetrain.data.images.crop import luma


def brightness(pixels: Tensor, factor: Tensor) -> Tensor:
    """Scale the distance to black."""
    return (pixels * factor).clamp_(0, 1)


def contrast(pixels: Tensor, factor: Tensor) -> Tensor:
    """Scale the distance to the mean of the gray image."""
    grey = levels(luma(pixels)).sum(dim=(1, 2, 3), keepdim=True)
    return _blend(pixels, grey.to(pixels.dtype) / (255 * pixels.shape[2] * pixels.shape[3]), factor)


def saturation(pixels: Tensor, factor: Tensor) -> Tensor:
    """Scale the distance to the gray image; a gray image stays unchanged."""
    return _blend(pixels, luma(pixels), factor)


def sharpness(pixels: Tensor, factor: Tensor) -> Tensor:
    """Scale the distance to a smoothed copy; border pixels stay unchanged."""
    rows = pixels[:, :, :-2] + pixels[:, :, 1:-1] + pixels[:, :, 2:]
    box = rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:]
    smooth = pixels.clone()
    smooth[..., 1:-1, 1:-1] = (box + 4 * pixels[..., 1:-1, 1:-1]) / 13
    return _blend(pixels, smooth, factor)


def posterize(pixels: Tensor, bits: int) -> Tensor:
    """Keep only the highest `bits` of 8."""
    return levels(pixels).bitwise_and_(256 - 2 ** (8 - bits)).to(pixels.dtype) / 255


def solarize(pixels: Tensor, threshold: float) -> Tensor:
    """Invert pixels of at least `threshold`."""
    return torch.where(pixels >= threshold, 1 - pixels, pixels)


def autocontrast(pixels: Tensor) -> Tensor:
    """Stretch each channel to the full range."""
    low, high = pixels.amin(dim=(2, 3), keepdim=True), pixels.amax(dim=(2, 3), keepdim=True)
    return torch.where(high > low, (pixels - low) / (high - low).clamp_min(1e-12), pixels)


def equalize(pixels: Tensor) -> Tensor:
    """Equalize the histogram of each channel."""
    level = levels(pixels).flatten(2).flatten(0, 1)
    counts = torch.zeros(len(level), 256, dtype=torch.int64, device=level.device)
    counts.scatter_add_(1, level, torch.ones_like(level))
    highest = counts.gather(1, level.amax(dim=1, keepdim=True))
    step = (level.shape[1] - highest) // 255
    table = ((counts.cumsum(dim=1) - counts + step // 2) // step.clamp_min(1)).clamp_(max=255)
    equalized = torch.where(step > 0, table.gather(1, level), level)
    return (equalized.to(pixels.dtype) / 255).view_as(pixels)


def levels(pixels: Tensor) -> Tensor:
    """Pixels as integers from 0 to 255, int64."""
    return (pixels * 255).round().to(torch.int64)


def _blend(pixels: Tensor, other: Tensor, factor: Tensor) -> Tensor:
    """Scale the distance of `pixels` to `other`, and clamp to 0 to 1."""
    return (other + (pixels - other) * factor).clamp_(0, 1)
