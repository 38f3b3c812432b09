"""Reads windows that are already cut, as arrays `x` and `y` of an .npz file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from drivetrain.data import target_columns
from drivetrain.data.formats import column_values, npz_file
from drivetrain.data.partition import Groups
from drivetrain.data.series import array_axes
from drivetrain.data.series.windows import WindowSplit
from drivetrain.data.source import BadSample, Source
from drivetrain.data.target_columns import TargetColumn
from drivetrain.errors import DataError

FORM = "an .npz with `x` of shape (N, T, channels), numbers, and `y` of shape (N,) or (N, K)"
WRITE = "write it with numpy.savez_compressed; series of different lengths need a table with one row per time step"


def read_windows(source: Source, *, classes: bool, axes: str = "auto", groups: str | None = None) -> WindowSplit:
    """Read and check the arrays of a file; `axes` is time-channels, channels-time, or auto, and `groups` names an array.

    Raises:
        DataError: if the file is not such an .npz, or no window can be used.
    """
    path, key = source.path, source.key
    names = ["x", *(["y"] if source.labelled else []), *([groups] if groups else [])]
    arrays = npz_file.read_arrays(path, key, names, FORM, "numpy.savez(..., x=x, y=y)", WRITE)
    values, order, axis_notes = _order_axes(arrays["x"], axes, path, key)
    window_groups = _number_groups(arrays[groups], len(values), groups, path, key) if groups else None
    target = _read_targets(arrays["y"], len(values), classes, path, key) if source.labelled else None
    reasons = dict.fromkeys(np.flatnonzero(~_find_finite(values)).tolist(), "NaN or infinity")
    reasons |= target.bad if target else {}
    unusable = [BadSample(f"{path.name}[{row}]", reasons[row]) for row in sorted(reasons)]
    notes = source.check_bad(unusable, len(values))
    is_usable = np.ones(len(values), np.bool_)
    is_usable[list(reasons)] = False
    if not is_usable.any():
        raise DataError(f"{key}: no window of {path} is usable; {unusable[0]}", "one window or more", "fix the file")
    rows, (length, channels) = np.flatnonzero(is_usable).astype(np.int64), values.shape[1:]
    return WindowSplit(
        source,
        values.reshape(-1, channels),
        rows * length,
        length,
        np.repeat(is_usable, length),
        target,
        target_rows=rows,
        numbers=rows,
        title_format="{file}[{number}]",
        notes=[*axis_notes, *notes],
        groups=None if window_groups is None else window_groups[rows],
        axes=order,
    )


def _number_groups(array: npt.NDArray[Any], windows: int, name: str, path: Path, key: str) -> Groups:
    if array.shape != (windows,):
        raise DataError(
            f"{key}: `{name}` of {path} has shape {array.shape}, and `x` has {windows:,} windows",
            "one group for each window: shape (N,)",
            "write the file again with both of one length",
        )
    return np.unique(array, return_inverse=True)[1].astype(np.int64)


def _order_axes(
    x: npt.NDArray[np.generic], axes: str, path: Path, key: str
) -> tuple[npt.NDArray[np.generic], str, list[str]]:
    """Convert windows to (N, T, channels); also returns the order of their axes, and notes if it is, or may be, another."""
    if x.ndim == 2:
        x = x[:, :, None]
    if x.ndim != 3 or 0 in x.shape or x.dtype.kind not in "iufb":
        raise DataError(f"{key}: `x` of {path} is {x.dtype} of shape {x.shape}", FORM, "reshape or convert it")
    order, notes = array_axes.find_axis_order(x, path, key) if axes == "auto" else (axes, [])
    if order == "channels-time":
        x = x.transpose(0, 2, 1)
        notes = [
            f"{path.name}: `x` is read as (N, channels, T): windows of {x.shape[1]:,} rows of {x.shape[2]} channels"
        ]
    # float64 and large integers stay exact; smaller types are converted, as numbers of four bytes.
    kind = np.float32 if x.dtype.kind in "bu" or x.dtype.itemsize < 4 else x.dtype
    return np.ascontiguousarray(x, kind), order, notes


def _read_targets(y: npt.NDArray[Any], windows: int, classes: bool, path: Path, key: str) -> TargetColumn:
    import pyarrow

    if y.ndim == 1:
        y = y[:, None]
    if y.ndim != 2 or y.shape[1] == 0 or y.dtype.kind not in ("iufbUS" if classes else "iufb"):
        raise DataError(f"{key}: `y` of {path} is {y.dtype} of shape {y.shape}", FORM, "reshape or convert it")
    if len(y) != windows:
        raise DataError(
            f"{key}: {path} has {windows:,} windows in `x` and {len(y):,} targets in `y`",
            "one target for each window",
            "write the file again with both of one length",
        )
    if classes and y.shape[1] > 1:
        raise DataError(
            f"{key}: `y` of {path} has shape {y.shape}",
            "one class for each window: shape (N,)",
            "save the number of the class: y.argmax(axis=1)",
        )
    names = [f"y[{index}]" for index in range(y.shape[1])] if y.shape[1] > 1 else ["y"]
    if y.dtype.kind == "S":
        y = np.char.decode(y, "utf-8", "backslashreplace")
    table = pyarrow.table({name: pyarrow.array(column) for name, column in zip(names, y.T, strict=True)})
    return target_columns.read_targets(table, names, classes=classes, option=key, source=str(path))


def _find_finite(values: npt.NDArray[np.generic]) -> column_values.Mask:
    """A mask (N,) of the windows whose numbers are all finite and not too large."""
    if values.dtype.kind != "f":
        return np.ones(len(values), np.bool_)
    # A window's sum is finite only if all its numbers are; this avoids a boolean array as large as `x`.
    with np.errstate(invalid="ignore", over="ignore"):
        is_finite = np.isfinite(values.sum(axis=(1, 2), dtype=np.float64))
    for row in np.flatnonzero(~is_finite):
        is_finite[row] = bool((np.abs(values[row]) <= column_values.LARGEST).all())
    return np.asarray(is_finite)
