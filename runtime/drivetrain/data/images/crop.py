"""Makes images square: center crop, padding with zeros, or squashing (`data.fit`)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from drivetrain.data.images.resize import DEFAULT_RESIZE, Resize, pad_sides

LUMA = (0.299, 0.587, 0.114)
"""Weights of red, green and blue in gray (ITU-R BT.601, as in Pillow and JPEG)."""

_TORCH_INTERPOLATIONS = {"nearest": "nearest-exact", "lanczos": "bicubic", "box": "area", "hamming": "bilinear"}
"""The interpolation of torch that is nearest to each of Pillow that torch lacks."""


def square(pixels: Tensor, size: int, channels: int, resize: Resize = DEFAULT_RESIZE) -> Tensor:
    """Resize images to squares with the given number of channels; the dtype stays.

    Args:
        pixels: shape (N, C, H, W), uint8 or float32.
        size: side of the square in pixels; with antialiasing when it is smaller.
        channels: 1 or 3; gray is repeated three times, color is converted to luma.

    Returns:
        Shape (N, channels, size, size).
    """
    if pixels.shape[1] != channels:
        # Gray becomes three equal channels, and color luma.
        pixels = pixels.expand(-1, 3, -1, -1) if channels == 3 else _round_to(luma(pixels.float()), pixels.dtype)
    height, width = pixels.shape[2:]
    inner = pad_sides((height, width), size) if resize.fit == "pad" else (size, size)
    if resize.fit != "pad":
        part_width, part_height = (max(1, round(side)) for side in resize.kept(width, height))
        top, first_column = (height - part_height) // 2, (width - part_width) // 2
        pixels = pixels[:, :, top : top + part_height, first_column : first_column + part_width]
    if pixels.shape[2:] != inner:
        parts = [
            _resize(pixels[start : start + 1024], inner, resize.interpolation) for start in range(0, len(pixels), 1024)
        ]
        pixels = torch.cat(parts)
    top, first_column = (size - inner[0]) // 2, (size - inner[1]) // 2
    return functional.pad(
        pixels, (first_column, size - inner[1] - first_column, top, size - inner[0] - top)
    ).contiguous()


def luma(pixels: Tensor) -> Tensor:
    """Float images (N, C, H, W) as gray images (N, 1, H, W)."""
    if pixels.shape[1] == 1:
        return pixels
    red, green, blue = (pixels[:, i : i + 1] * share for i, share in enumerate(LUMA))
    return red + green + blue


def _resize(pixels: Tensor, sides: tuple[int, int], mode: str) -> Tensor:
    mode = _TORCH_INTERPOLATIONS.get(mode, mode)
    out = functional.interpolate(pixels.float(), sides, mode=mode, antialias=mode in ("bilinear", "bicubic"))
    return _round_to(out, pixels.dtype)


def _round_to(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Convert to `dtype`; integers are rounded, from 0 to 255."""
    return values if dtype.is_floating_point else values.round().clamp(0, 255).to(dtype)
