"""Reads a column of times of which a few cells are none, such as 0000-00-00, so that its reader took all of it for text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from runtime.data.formats import column_values

if TYPE_CHECKING:
    import pyarrow

FORM = r"^\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d(:?\d\d)?)?)?$"
MOSTLY = 0.5
"""Share of times among the filled cells from which on a column of text is one of times."""
_TRIED = 100
"""Different cells by which the type is chosen."""


def read(column: pyarrow.ChunkedArray) -> tuple[Any, column_values.Mask] | None:
    """A column of text as timestamps, null where a cell is empty or no time, and a mask of the cells that are no time; None
    if most cells are no times.
    """
    from pyarrow import array, compute, timestamp

    texts = column_values.texts(column)
    shaped = compute.unique(texts.filter(compute.match_substring_regex(texts, FORM)))
    kinds = [timestamp(unit, zone) for zone in (None, "UTC") for unit in ("us", "ns")]
    kind = max(kinds, key=lambda one: sum(map(len, _parsed(shaped.slice(0, _TRIED), one))))
    good = array([text for part in _parsed(shaped, kind) for text in part.to_pylist()], texts.type)
    right = compute.is_in(texts, good)
    wrong = compute.and_(texts.is_valid(), compute.invert(right))
    filled = len(texts) - texts.null_count
    if not filled or (compute.sum(right).as_py() or 0) < MOSTLY * filled:
        return None
    return compute.if_else(right, texts, None).cast(kind), np.asarray(wrong.to_numpy(zero_copy_only=False), np.bool_)


def first_other(column: pyarrow.ChunkedArray) -> int:
    """The row of the first cell that has not the form of a time; the first of all if there is none."""
    from pyarrow import compute

    texts = column_values.texts(column)
    shaped = compute.fill_null(compute.match_substring_regex(texts, FORM), True)
    return int((~shaped.to_numpy(zero_copy_only=False)).argmax())


def _parsed(texts: pyarrow.Array, kind: pyarrow.DataType) -> list[pyarrow.Array]:
    """The parts of these texts that are times of a type: halved as long as a part has one that is none."""
    from pyarrow import ArrowInvalid

    parts, good = [texts] if len(texts) else [], []
    while parts:
        part = parts.pop()
        try:
            part.cast(kind)
        except ArrowInvalid:
            half = len(part) // 2
            parts += [part.slice(0, half), part.slice(half)] if half else []
        else:
            good.append(part)
    return good
