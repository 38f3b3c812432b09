"""Colour: changes of brightness, contrast and the like, on a batch of images with pixels from 0 to 1.

The meaning is that of Pillow's ImageEnhance and ImageOps. `factor` has shape (N, 1, 1, 1); 1 changes nothing. Sums
over an image are taken over whole numbers, so that they do not depend on how a batch is summed.
"""

from __future__ import annotations

import torch
from torch import Tensor

from runtime.data.images.crop import luma


def brightness(pixels: Tensor, factor: Tensor) -> Tensor:
    """Away from black."""
    return (pixels * factor).clamp_(0, 1)


def contrast(pixels: Tensor, factor: Tensor) -> Tensor:
    """Away from the mean of the grey image."""
    grey = levels(luma(pixels)).sum(dim=(1, 2, 3), keepdim=True)
    return _away(pixels, grey.to(pixels.dtype) / (255 * pixels.shape[2] * pixels.shape[3]), factor)


def saturation(pixels: Tensor, factor: Tensor) -> Tensor:
    """Away from grey; a grey image stays as it is."""
    return _away(pixels, luma(pixels), factor)


def sharpness(pixels: Tensor, factor: Tensor) -> Tensor:
    """Away from a smoothed copy; the pixels of the edge stay as they are."""
    rows = pixels[:, :, :-2] + pixels[:, :, 1:-1] + pixels[:, :, 2:]
    box = rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:]
    smooth = pixels.clone()
    smooth[..., 1:-1, 1:-1] = (box + 4 * pixels[..., 1:-1, 1:-1]) / 13
    return _away(pixels, smooth, factor)


def posterize(pixels: Tensor, bits: int) -> Tensor:
    """Only the highest `bits` of 8 are kept."""
    return levels(pixels).bitwise_and_(256 - 2 ** (8 - bits)).to(pixels.dtype) / 255


def solarize(pixels: Tensor, threshold: float) -> Tensor:
    """Pixels of at least `threshold` inverted."""
    return torch.where(pixels >= threshold, 1 - pixels, pixels)


def autocontrast(pixels: Tensor) -> Tensor:
    """Each channel stretched to the whole range."""
    low, high = pixels.amin(dim=(2, 3), keepdim=True), pixels.amax(dim=(2, 3), keepdim=True)
    return torch.where(high > low, (pixels - low) / (high - low).clamp_min(1e-12), pixels)


def equalize(pixels: Tensor) -> Tensor:
    """Each channel's levels spread so that each is about as frequent."""
    level = levels(pixels).flatten(2).flatten(0, 1)
    counts = torch.zeros(len(level), 256, dtype=torch.int64, device=level.device)
    counts.scatter_add_(1, level, torch.ones_like(level))
    highest = counts.gather(1, level.amax(dim=1, keepdim=True))
    step = (level.shape[1] - highest) // 255
    table = ((counts.cumsum(dim=1) - counts + step // 2) // step.clamp_min(1)).clamp_(max=255)
    spread = torch.where(step > 0, table.gather(1, level), level)
    return (spread.to(pixels.dtype) / 255).view_as(pixels)


def levels(pixels: Tensor) -> Tensor:
    """Pixels as whole numbers from 0 to 255, int64."""
    return (pixels * 255).round().to(torch.int64)


def _away(pixels: Tensor, other: Tensor, factor: Tensor) -> Tensor:
    return (other + (pixels - other) * factor).clamp_(0, 1)
