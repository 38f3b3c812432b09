"""RandAugment (Cubuk et al. 2020): a few operations in sequence, chosen at random per image from a list of 14.

All have the strength `magnitude` of 30; the direction is random where there are two. At 30: shear by 0.3, translate by
150/331 of the side, rotate by 30 degrees, all around the center; brightness, color, contrast and sharpness by a factor
of 0.1 or 1.9; posterize to 4 bits; solarize from 0 on. Gray images skip `color`: 13 operations.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from torch import Tensor

from drivetrain.data.images import color_ops
from drivetrain.data.images.warp import Floats, identity, warp
from drivetrain.data.to_device import onto

Names = npt.NDArray[np.str_]

MAX_MAGNITUDE = 30
"""The magnitude at which each operation has its full strength."""
MOVES = ("shear_x", "shear_y", "translate_x", "translate_y", "rotate")
"""Geometric operations, which are one affine warp each."""
FACTORS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "brightness": color_ops.brightness,
    "contrast": color_ops.contrast,
    "sharpness": color_ops.sharpness,
    "color": color_ops.saturation,
}
"""Operations that take a factor per image."""
BATCH_OPERATIONS: dict[str, Callable[[Tensor, float], Tensor]] = {
    "posterize": lambda pixels, share: color_ops.posterize(pixels, 8 - round(4 * share)),
    "solarize": lambda pixels, share: color_ops.solarize(pixels, 1 - share),
    "autocontrast": lambda pixels, share: color_ops.autocontrast(pixels),
    "equalize": lambda pixels, share: color_ops.equalize(pixels),
}
"""Operations with one strength for all images of a batch; the last two have none."""
OPERATIONS = ("identity", *MOVES, *BATCH_OPERATIONS, *FACTORS)
"""`color` is last, so that gray images can choose from all but the last."""


def randaugment(pixels: Tensor, drawn: Floats, magnitude: int, fill: Tensor) -> Tensor:
    """Apply randomly chosen operations to each image.

    Args:
        pixels: shape (N, C, H, W), from 0 to 1.
        drawn: random numbers in [0, 1), two per operation (which one, which direction); shape (N, 2 * operations).
        magnitude: 0 to 30.
        fill: color of areas outside of the image, shape (C, 1, 1).
    """
    names = OPERATIONS if pixels.shape[1] == 3 else OPERATIONS[:-1]
    for operation_draw, direction_draw in zip(drawn.T[0::2], drawn.T[1::2], strict=True):
        operations = np.array(names)[(operation_draw * len(names)).astype(np.int64)]
        pixels = apply(pixels, operations, np.where(direction_draw < 0.5, -1.0, 1.0), magnitude / MAX_MAGNITUDE, fill)
    return pixels


def apply(pixels: Tensor, names: Names, signs: Floats, share: float, fill: Tensor) -> Tensor:
    """Apply one operation to each image; images with the same operation are processed together.

    Args:
        pixels: shape (N, C, H, W).
        names: the operation of each image, shape (N,).
        signs: -1 or 1 for each image, shape (N,).
        share: strength from 0 to 1.
        fill: shape (C, 1, 1).
    """
    result = pixels.clone()
    is_move = np.isin(names, MOVES)
    _replace(result, is_move, lambda part: warp(part, _matrices(names[is_move], signs[is_move], share), fill))
    for name, change in FACTORS.items():
        is_selected = names == name
        factor = onto(pixels.device, 1 + 0.9 * share * signs[is_selected], pixels.dtype).view(-1, 1, 1, 1)
        _replace(result, is_selected, lambda part, change=change, factor=factor: change(part, factor))  # type: ignore[misc]
    for name, operation in BATCH_OPERATIONS.items():
        _replace(result, names == name, lambda part, operation=operation: operation(part, share))  # type: ignore[misc]
    return result


def _replace(pixels: Tensor, is_selected: npt.NDArray[np.bool_], change: Callable[[Tensor], Tensor]) -> None:
    """Apply `change` to the selected images, in place."""
    if is_selected.any():
        rows = onto(pixels.device, np.flatnonzero(is_selected))
        pixels[rows] = change(pixels[rows])


def _matrices(names: Names, signs: Floats, share: float) -> Floats:
    """Affine matrices from output to source, for geometric operations; shape (N, 2, 3)."""
    matrices = identity(len(names))
    # The entry that each operation changes: row, column and largest value. In these coordinates a side has length 2.
    matrix_entries = {
        "shear_x": (0, 1, 0.3),
        "shear_y": (1, 0, 0.3),
        "translate_x": (0, 2, 300 / 331),
        "translate_y": (1, 2, 300 / 331),
    }
    for name, (row, column, max_value) in matrix_entries.items():
        is_selected = names == name
        matrices[is_selected, row, column] = max_value * share * signs[is_selected]
    is_rotated = names == "rotate"
    angle = np.deg2rad(30 * share * signs[is_rotated])
    matrices[is_rotated, 0, 0] = matrices[is_rotated, 1, 1] = np.cos(angle)
    matrices[is_rotated, 0, 1], matrices[is_rotated, 1, 0] = -np.sin(angle), np.sin(angle)
    return matrices
