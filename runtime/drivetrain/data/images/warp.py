"""Affine warps and random resized crops, each by one bilinear sampling.

A matrix (N, 2, 3) maps a point of the output to its point in the source, both as (x, y) from -1 to 1 with the center at
0. Grids are computed elementwise, not by a matrix product, whose last bit depends on the batch size.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from drivetrain.data.to_device import onto

Floats = npt.NDArray[np.float64]


def warp(pixels: Tensor, matrices: Floats, fill: Tensor) -> Tensor:
    """Warp images; areas outside of the source get the color `fill`.

    Args:
        pixels: shape (N, C, H, W).
        matrices: shape (N, 2, 3), from output to source.
        fill: shape (C, 1, 1).
    """
    return _sample(pixels - fill, matrices, "zeros").add_(fill)


def crop(pixels: Tensor, drawn: Floats, scale: tuple[float, float], ratio: tuple[float, float]) -> Tensor:
    """Crop each image at random, and resize it to the full size (Szegedy et al. 2015).

    A crop is never larger than the image, so sampling only magnifies and needs no antialiasing. Sides longer than the
    image are clipped.

    Args:
        pixels: shape (N, C, H, W).
        drawn: random numbers in [0, 1) for area, aspect ratio, x and y; shape (N, 4).
        scale: smallest and largest share of the area.
        ratio: smallest and largest width / height; log-uniform between them.
    """
    area = scale[0] + (scale[1] - scale[0]) * drawn[:, 0]
    aspect_ratio = np.exp(np.log(ratio[0]) + np.log(ratio[1] / ratio[0]) * drawn[:, 1])
    width, height = np.minimum(np.sqrt(area * aspect_ratio), 1), np.minimum(np.sqrt(area / aspect_ratio), 1)
    matrices = identity(len(pixels))
    matrices[:, 0, 0], matrices[:, 1, 1] = width, height
    matrices[:, 0, 2], matrices[:, 1, 2] = (1 - width) * (2 * drawn[:, 2] - 1), (1 - height) * (2 * drawn[:, 3] - 1)
    return _sample(pixels, matrices, "border")


def identity(count: int) -> Floats:
    """Identity matrices, shape (count, 2, 3)."""
    return np.tile(np.eye(2, 3), (count, 1, 1))


def _sample(pixels: Tensor, matrices: Floats, outside: str) -> Tensor:
    """Sample the source of each output pixel; `outside` is the padding mode of grid_sample."""
    # Two broadcast dimensions for the lines and columns of the grid.
    m = onto(pixels.device, matrices, pixels.dtype)[:, :, :, None, None]
    # Pixel centers of sides that go from -1 to 1.
    y, x = ((torch.arange(n, device=pixels.device, dtype=pixels.dtype) * 2 + 1) / n - 1 for n in pixels.shape[2:])
    y, x = y[:, None], x[None, :]
    grid = torch.stack([m[:, i, 0] * x + m[:, i, 1] * y + m[:, i, 2] for i in (0, 1)], dim=-1)
    return functional.grid_sample(pixels, grid, "bilinear", outside, align_corners=False)
