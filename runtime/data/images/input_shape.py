"""Chooses the image size and channels of the network's input, if the job does not set them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

SMALLEST, LARGEST, GRID = 16, 224, 16
"""Limits and multiple of an automatic size for image files, in pixels."""


def padded(sides: tuple[float, float], size: int) -> tuple[int, int]:
    """Height and width of an image after its longer side is resized to `size`."""
    scale = size / max(sides)
    return max(1, round(sides[0] * scale)), max(1, round(sides[1] * scale))


def choose_size(asked: int | str, short_sides: npt.NDArray[np.int64], exact: bool) -> tuple[int, str]:
    """The side of the square, and the reason.

    Args:
        asked: `data.image_size` of the job.
        short_sides: shorter side of each image, in pixels.
        exact: whether all images have one size, as in an array, so that it can be kept.
    """
    if isinstance(asked, int):
        return asked, "set in the job file"
    middle = float(np.median(short_sides))
    if exact:
        return int(middle), "the size of the arrays"
    size = int(np.clip(round(middle / GRID) * GRID, SMALLEST, LARGEST))
    return size, f"the median short side is {middle:g} pixels; rounded to a multiple of {GRID}, at most {LARGEST}"


def choose_channels(asked: int | str, grey: bool) -> tuple[int, str]:
    """1 or 3 channels, and the reason."""
    if isinstance(asked, int):
        return asked, "set in the job file"
    return (1, "all images are grayscale") if grey else (3, "some images are in color")
