"""Finds the order of the axes of an array of windows: (N, T, channels), or (N, channels, T) as some libraries have it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from drivetrain.errors import DataError

MAX_COMPARED_WINDOWS = 1000
"""Number of windows by which the order of the axes is found."""
MAX_NEIGHBOR_DIFFERENCE = 0.8
"""Along the time axis neighbors differ by less than this share of how much they differ along the other axis."""


def find_axis_order(x: npt.NDArray[np.generic], path: Path, key: str) -> tuple[str, list[str]]:
    """The order of the axes of `x`: time-channels if the second is longer than the last, else by where neighbors differ less.

    Also returns a note if an array that is read as time-channels looks like channels-time with more channels than rows.

    Raises:
        DataError: if the second axis is not longer, and neighbors differ about as much along both.
    """
    if 1 in x.shape[1:]:
        return "time-channels" if x.shape[2] == 1 else "channels-time", []
    along_second, along_last = _measure_differences(x)
    is_last_smoother = along_last < MAX_NEIGHBOR_DIFFERENCE * along_second
    if x.shape[1] > x.shape[2]:
        note = (
            f"{path.name}: `x` is read as (N, T, channels), windows of {x.shape[1]:,} rows of {x.shape[2]} channels, "
            "although neighbors along the last axis are more alike; data.axes: channels-time if that is the time"
        )
        return "time-channels", [note] if is_last_smoother else []
    if is_last_smoother:
        return "channels-time", []
    if along_second < MAX_NEIGHBOR_DIFFERENCE * along_last:
        return "time-channels", []
    raise DataError(
        f"{key}: `x` of {path} has shape {x.shape}: windows of {x.shape[1]} rows of {x.shape[2]} channels, or of "
        f"{x.shape[2]} rows of {x.shape[1]} channels",
        "(N, T, channels), or the order of the axes in data.axes",
        "set data.axes: channels-time if the last axis is the time, else time-channels",
    )


def _measure_differences(x: npt.NDArray[np.generic]) -> tuple[float, float]:
    """The root mean squared difference of neighbors along the second and along the last axis, of finite values."""
    first_windows = x[:MAX_COMPARED_WINDOWS].astype(np.float64)
    with np.errstate(all="ignore"):
        squared_differences = [np.diff(first_windows, axis=axis) ** 2 for axis in (1, 2)]
    along_second, along_last = (
        float(squares[np.isfinite(squares)].sum() / max(1, np.isfinite(squares).sum())) ** 0.5
        for squares in squared_differences
    )
    return along_second, along_last
