"""The order of the axes of an array of windows: (N, T, channels), or (N, channels, T) as some libraries have it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from runtime.errors import DataError

LOOKED_AT = 1000
"""Windows in which the order of the axes is found."""
ALIKE = 0.8
"""Neighbors along one axis differ at most by this share of what those along the other do, if it is the time."""


def order(x: npt.NDArray[np.generic], path: Path, key: str) -> str:
    """The order of the axes: where neighbors are more alike is time.

    Raises:
        DataError: if windows have fewer rows than channels, and neighbors are as alike in both directions.
    """
    if x.shape[1] >= x.shape[2]:
        return "time-channels"
    if x.shape[1] == 1:
        return "channels-time"
    some = x[:LOOKED_AT].astype(np.float64)
    with np.errstate(all="ignore"):
        down, across = (np.nanmean(np.diff(some, axis=axis) ** 2) ** 0.5 for axis in (1, 2))
    if across < ALIKE * down:
        return "channels-time"
    if down < ALIKE * across:
        return "time-channels"
    raise DataError(
        f"{key}: `x` of {path} has shape {x.shape}: windows of {x.shape[1]} rows of {x.shape[2]} channels, or of "
        f"{x.shape[2]} rows of {x.shape[1]} channels",
        "(N, T, channels), or the order of the axes in data.axes",
        "set data.axes: channels-time if the last axis is the time, else time-channels",
    )
