"""Converts the cells of a table's column to numbers, text, times or class indices."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from drivetrain.data.formats import number_marks
from drivetrain.errors import DataError
from drivetrain.job.formatting import printable
from drivetrain.system import spelling

if TYPE_CHECKING:
    import pyarrow

Numbers = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

LARGEST = float(np.finfo(np.float32).max)
"""Largest finite number, since the network computes in float32; larger numbers count as infinite."""
_NUMBER = r"^[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?$|^[-+]?(inf|infinity|Inf|Infinity)$"
TRUTH = {"true": "1", "True": "1", "TRUE": "1", "false": "0", "False": "0", "FALSE": "0"}
"""Truth values that the CSV reader accepts; it reads a column as text if any cell is something else."""


def kind(column: pyarrow.ChunkedArray) -> str:
    """Return the kind of a pyarrow column: `number` (also booleans), `text`, `nothing`, `time`, or a type's name."""
    return kind_of(column.type)


def kind_of(data_type: pyarrow.DataType) -> str:
    """Return the kind of a column by its type, as `kind` does."""
    from pyarrow import types

    kinds = {
        "number": (types.is_integer, types.is_floating, types.is_boolean, types.is_decimal),
        "text": (types.is_string, types.is_large_string, types.is_string_view),
        "nothing": (types.is_null,),
        "time": (types.is_temporal,),
    }
    matching = (name for name, checks in kinds.items() if any(is_of(data_type) for is_of in checks))
    return next(matching, str(data_type))


def numbers(column: pyarrow.ChunkedArray) -> tuple[Numbers, Mask]:
    """Read a column as float64 with NaN for empty cells, and a mask of the cells that are not numbers; both (N,)."""
    from pyarrow import array, compute, float64, int8, types

    not_numbers = np.zeros(len(column), np.bool_)
    if kind(column) == "text":
        trimmed = texts(column)
        for word, digit in TRUTH.items():
            trimmed = compute.if_else(compute.equal(trimmed, word), digit, trimmed)
        is_number = number_marks.match(trimmed, _NUMBER)
        is_missing = compute.is_in(trimmed, array(number_marks.MISSING_NUMBERS, trimmed.type))
        not_numbers = ~_to_numpy(compute.or_(is_number, compute.or_(compute.is_null(trimmed), is_missing)))
        column = compute.if_else(is_number, trimmed, None)
    elif types.is_boolean(column.type):
        column = column.cast(int8())
    # Integers beyond 2^53 lose digits, which float32 would drop anyway.
    values = _to_numpy(compute.cast(column, float64(), safe=False))
    return values, not_numbers


def texts(column: pyarrow.ChunkedArray) -> pyarrow.ChunkedArray:
    """Return a column as stripped text in one spelling, null for empty cells; a pyarrow array of strings.

    If all numbers of a column are whole, they are written without `.0`, so that an integer column reads the same with
    gaps in it and as text.
    """
    from pyarrow import compute, int64, large_string, string, types

    if types.is_floating(column.type):
        values = _to_numpy(column).astype(np.float64)
        is_integer = np.isnan(values) | (np.abs(values) < 2.0**53) & (values == np.floor(values))
        if is_integer.all():
            column = compute.cast(compute.if_else(compute.is_nan(column), None, column), int64())
    if not (types.is_string(column.type) or types.is_large_string(column.type)):
        column = compute.cast(column, large_string() if types.is_string_view(column.type) else string())
    composed = compose_text(column)
    if composed is not column:  # not ASCII
        column = compute.replace_substring_regex(composed, spelling.INVISIBLE_MARKS, "")
    trimmed = compute.utf8_trim_whitespace(column)
    if _matches(trimmed, spelling.WHOLE_NUMBER) and not _matches(trimmed, spelling.FRACTION):
        trimmed = compute.replace_substring_regex(trimmed, spelling.WHOLE_NUMBER, r"\1")
    filled = trimmed.filter(compute.not_equal(trimmed, ""))
    if compute.all(compute.match_substring_regex(filled, spelling.TRUTH_VALUE)).as_py():
        trimmed = compute.utf8_lower(trimmed)
    return compute.if_else(compute.equal(trimmed, ""), None, trimmed)


def compose_text(column: pyarrow.ChunkedArray) -> pyarrow.ChunkedArray:
    """Return a column of strings in Unicode's composed form (NFC), so that equal texts of different systems match."""
    from pyarrow import compute

    if compute.all(compute.string_is_ascii(column)).as_py() is not False:
        return column
    return compute.utf8_normalize(column, "NFC")


def _matches(column: pyarrow.ChunkedArray, pattern: str) -> bool:
    from pyarrow import compute

    return bool(compute.any(compute.match_substring_regex(column, pattern)).as_py())


def empty_cells(column: pyarrow.ChunkedArray, cells: Collection[str]) -> pyarrow.ChunkedArray:
    """Empty the cells of a column that are in `cells`, compared as text or as the value of that text in its type."""
    from pyarrow import ArrowException, array, compute, float64, scalar, types

    column_kind = kind(column)
    if column_kind == "text":
        trimmed = compute.utf8_trim_whitespace(column)
        return compute.if_else(compute.is_in(trimmed, array(cells, trimmed.type)), None, column)
    has_own_type = column_kind != "number" or types.is_boolean(column.type) or types.is_floating(column.type)
    compared_type = column.type if has_own_type else float64()
    values = []
    for cell in cells:
        try:
            values.append(scalar(cell).cast(compared_type))
        except (ArrowException, NotImplementedError):
            continue
    if not values:
        return column
    comparable = column if compared_type == column.type else compute.cast(column, compared_type, safe=False)
    return compute.if_else(
        compute.is_in(comparable, array([value.as_py() for value in values], compared_type)), None, column
    )


def different(column: pyarrow.ChunkedArray) -> list[str]:
    """Return the distinct texts of a column, without empty cells."""
    from pyarrow import compute

    return [str(value) for value in compute.unique(column).to_pylist() if value is not None]


def count_texts(column: pyarrow.ChunkedArray) -> dict[str, int]:
    """Count the rows of each distinct text of a column, without empty cells."""
    counts = texts(column).drop_null().value_counts()
    return dict(zip(counts.field("values").to_pylist(), counts.field("counts").to_pylist(), strict=True))


def positions(column: pyarrow.ChunkedArray, values: tuple[str, ...]) -> npt.NDArray[np.int32]:
    """Return the index of each text in `values`, shape (N,), int32; -1 for other texts.

    Another spelling, such as 12.0 for 12, counts as the same text.
    """
    from pyarrow import array, compute

    indices_in_values = compute.fill_null(compute.index_in(column, array(values, column.type)), -1)
    exact_positions = np.asarray(_to_numpy(indices_in_values), np.int32)
    unknown = compute.unique(column.filter(exact_positions < 0)).drop_null()
    if not len(unknown):
        return exact_positions
    codes = {spelling.clean_category(value): index for index, value in reversed(list(enumerate(values)))}
    indices = np.array([codes.get(spelling.clean_category(text), -1) for text in unknown.to_pylist()], np.int32)
    position_in_unknown = _to_numpy(compute.fill_null(compute.index_in(column, unknown), -1))
    return np.where(position_in_unknown >= 0, indices[position_in_unknown], exact_positions)


def value_numbers(column: pyarrow.ChunkedArray | pyarrow.Array) -> npt.NDArray[np.int64]:
    """Number the values by first appearance; return the number of each cell, -1 for an empty one; shape (N,)."""
    from pyarrow import ChunkedArray, compute

    combined = column.combine_chunks() if isinstance(column, ChunkedArray) else column
    numbers = combined.dictionary_encode().indices
    return np.asarray(_to_numpy(compute.fill_null(numbers, -1)), np.int64)


def format_cell(column: pyarrow.ChunkedArray, row: int) -> str:
    """Format one cell for messages."""
    return f"`{printable(str(column[row].as_py()), 40)}`"


def check_kind(column: pyarrow.ChunkedArray, name: str, option: str, source: str, *, dates: bool = False) -> None:
    """Check that cells are numbers or text or, if allowed, dates.

    Raises:
        DataError: for other types; names `option`.
    """
    column_kind = kind(column)
    if column_kind not in ("number", "text", "nothing") and not (dates and column_kind == "time"):
        raise DataError(
            f'column "{name}" of {source} is {column.type}',
            "numbers, text, true or false",
            "convert it, or leave the column out",
            key=option,
        )


def _to_numpy(column: pyarrow.ChunkedArray) -> npt.NDArray[Any]:
    return np.asarray(column.to_numpy(zero_copy_only=False))
