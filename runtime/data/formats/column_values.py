"""Converts the cells of a table's column to numbers, text or class indices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from runtime.data import labels
from runtime.errors import DataError
from runtime.job.formatting import printable

if TYPE_CHECKING:
    import pyarrow

Numbers = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

LARGEST = float(np.finfo(np.float32).max)
"""Larger numbers count as infinite, since the network computes in float32."""
_NUMBER = r"^[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?$|^[-+]?(inf|infinity|Inf|Infinity)$"
NOTHING = ("", "NA", "N/A", "n/a", "#N/A", "NaN", "nan", "NULL", "null", "None")


def kind(column: pyarrow.ChunkedArray) -> str:
    """The kind of a pyarrow column: `number` (also booleans), `text`, `nothing`, `time`, or another type's name."""
    from pyarrow import types

    held = column.type
    if types.is_integer(held) or types.is_floating(held) or types.is_boolean(held) or types.is_decimal(held):
        return "number"
    if types.is_string(held) or types.is_large_string(held) or types.is_string_view(held):
        return "text"
    if types.is_null(held):
        return "nothing"
    return "time" if types.is_temporal(held) else str(held)


def numbers(column: pyarrow.ChunkedArray) -> tuple[Numbers, Mask]:
    """A column as float64 with NaN for empty cells, and a mask of the cells that are not numbers (NaN too); both (N,)."""
    from pyarrow import compute, float64, int8, types

    strange = np.zeros(len(column), np.bool_)
    if kind(column) == "text":
        trimmed = texts(column)
        good = compute.fill_null(compute.match_substring_regex(trimmed, _NUMBER), False)
        empty = compute.is_null(trimmed)
        strange = ~_array(compute.or_(good, compute.or_(empty, _is_one_of(trimmed, NOTHING))))
        column = compute.if_else(good, trimmed, None)
    elif types.is_boolean(column.type):
        column = column.cast(int8())
    # Integers beyond 2^53 lose digits, which float32 would drop anyway.
    values = _array(compute.cast(column, float64(), safe=False))
    return values, strange


def texts(column: pyarrow.ChunkedArray) -> pyarrow.ChunkedArray:
    """A column as stripped text, null for empty cells; a pyarrow array of strings.

    Numbers are written without `.0` if they are whole, so that an integer column reads the same with gaps in it.
    """
    from pyarrow import compute, int64, large_string, string, types

    if types.is_floating(column.type):
        values = _array(column).astype(np.float64)
        whole = np.isnan(values) | (np.abs(values) < 2.0**53) & (values == np.floor(values))
        if whole.all():
            column = compute.cast(compute.if_else(compute.is_nan(column), None, column), int64())
    if not (types.is_string(column.type) or types.is_large_string(column.type)):
        column = compute.cast(column, large_string() if types.is_string_view(column.type) else string())
    trimmed = compute.utf8_trim_whitespace(column)
    return compute.if_else(compute.equal(trimmed, ""), None, trimmed)


def different(column: pyarrow.ChunkedArray) -> list[str]:
    """The distinct texts of a column, without empty cells."""
    from pyarrow import compute

    return [str(value) for value in compute.unique(column).to_pylist() if value is not None]


def class_indices(column: pyarrow.ChunkedArray, classes: tuple[str, ...], key: str) -> npt.NDArray[np.int64]:
    """The class index of each text, shape (N,); no cell may be empty.

    Raises:
        DataError: for a text that is no class; names `key`.
    """
    found = different(column)
    if set(found) - set(classes):
        labels.indices(column.to_pylist(), classes, key)
    return positions(column, classes).astype(np.int64)


def positions(column: pyarrow.ChunkedArray, values: tuple[str, ...]) -> npt.NDArray[np.int32]:
    """The index of each text in `values`, -1 if it is not there; shape (N,), int32."""
    from pyarrow import array, compute

    return np.asarray(_array(compute.fill_null(compute.index_in(column, array(values, column.type)), -1)), np.int32)


def shown(column: pyarrow.ChunkedArray, row: int) -> str:
    """One cell, for messages."""
    return f"`{printable(str(column[row].as_py()), 40)}`"


def check_kind(column: pyarrow.ChunkedArray, name: str, option: str, source: str, *, dates: bool = False) -> None:
    """Check that cells are numbers or text or, if allowed, dates.

    Raises:
        DataError: for other types; names `option`.
    """
    held = kind(column)
    if held not in ("number", "text", "nothing") and not (dates and held == "time"):
        raise DataError(
            f'{option}: column "{name}" of {source} is {column.type}',
            "numbers, text, true or false",
            "convert it, or leave the column out",
        )


def _array(column: pyarrow.ChunkedArray) -> npt.NDArray[Any]:
    return np.asarray(column.to_numpy(zero_copy_only=False))


def _is_one_of(column: pyarrow.ChunkedArray, values: tuple[str, ...]) -> pyarrow.ChunkedArray:
    from pyarrow import array, compute

    return compute.is_in(column, array(values, column.type))
