"""The order of the axes of an array of windows: (N, T, channels), or (N, channels, T) as some libraries have it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from drivetrain.errors import DataError

LOOKED_AT = 1000
"""Windows in which the order of the axes is found."""
MAX_NEIGHBOR_DIFFERENCE = 0.8
"""Neighbors along one axis differ at most by this share of what those along the other do, if it is the time."""


def order(x: npt.NDArray[np.generic], path: Path, key: str) -> str:
    """The order of the axes: the longer one is time if it comes first, else where neighbors are more alike.

    Raises:
        DataError: if windows have no more rows than channels, and neighbors are as alike in both directions.
    """
    if x.shape[1] > x.shape[2] or x.shape[2] == 1:
        return "time-channels"
    if x.shape[1] == 1:
        return "channels-time"
    down, across = _differences(x)
    if across < MAX_NEIGHBOR_DIFFERENCE * down:
        return "channels-time"
    if down < MAX_NEIGHBOR_DIFFERENCE * across:
        return "time-channels"
    raise DataError(
        f"{key}: `x` of {path} has shape {x.shape}: windows of {x.shape[1]} rows of {x.shape[2]} channels, or of "
        f"{x.shape[2]} rows of {x.shape[1]} channels",
        "(N, T, channels), or the order of the axes in data.axes",
        "set data.axes: channels-time if the last axis is the time, else time-channels",
    )


def doubts(x: npt.NDArray[np.generic], path: Path) -> list[str]:
    """A note if an array that is read as (N, T, channels) looks like (N, channels, T) with more channels than rows."""
    if not 1 < x.shape[2] < x.shape[1]:
        return []
    down, across = _differences(x)
    if not across < MAX_NEIGHBOR_DIFFERENCE * down:
        return []
    return [
        f"{path.name}: `x` is read as (N, T, channels), windows of {x.shape[1]:,} rows of {x.shape[2]} channels, although "
        "neighbors along the last axis are more alike; data.axes: channels-time if that is the time"
    ]


def _differences(x: npt.NDArray[np.generic]) -> tuple[float, float]:
    """The root of the mean squared difference of neighbors along the second and along the last axis."""
    some = x[:LOOKED_AT].astype(np.float64)
    with np.errstate(all="ignore"):
        squares = [np.diff(some, axis=axis) ** 2 for axis in (1, 2)]
    down, across = (float(part[np.isfinite(part)].sum() / max(1, np.isfinite(part).sum())) ** 0.5 for part in squares)
    return down, across
