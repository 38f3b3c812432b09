"""Finds the usable rows of a table, and names rows in messages."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from runtime.data import bad_samples
from runtime.data.bad_samples import BadSample
from runtime.data.formats import column_values, row_lines
from runtime.data.stateless_random import Ids
from runtime.data.target_columns import TargetColumn
from runtime.errors import DataError

if TYPE_CHECKING:
    import pyarrow


@dataclass(frozen=True)
class RowNames:
    """Names of rows from several concatenated files."""

    files: tuple[str, ...]
    starts: tuple[int, ...]
    """Index of the first row of each file."""

    def row(self, row: int) -> str:
        """The file and the row in it; the first row below the header is row 1."""
        file = bisect_right(self.starts, row) - 1
        return f"{self.files[file]} row {row - self.starts[file] + 1}"


def usable(
    table: pyarrow.Table,
    numeric: Sequence[str],
    goal: TargetColumn | None,
    odd: Mapping[int, str],
    path: Path,
    key: str,
    budget: float | None,
) -> tuple[Ids, list[str]]:
    """The rows that can be used, and notes on the others.

    A row is dropped if it has no target, has text or infinity in a numeric column, or is among the `odd` ones.

    Args:
        table: a pyarrow table.
        numeric: its numeric columns.
        goal: its targets, if they are needed.
        odd: why other rows cannot be used, by row.
        path: its file.
        key: the spec key that names the file, for messages.
        budget: largest share of rows that may be dropped; None if at least one must remain.

    Raises:
        DataError: if a numeric column has another type, if too many rows are dropped, or all of them.
    """
    reasons: dict[int, list[str]] = {row: [reason] for row, reason in (goal.bad if goal else {}).items()}
    for row, reason in odd.items():
        reasons.setdefault(row, []).append(reason)
    for name in numeric:
        column_values.check_kind(table[name], name, key, str(path))
        values, strange = column_values.numbers(table[name])
        with np.errstate(invalid="ignore"):
            infinite = np.abs(values) > column_values.LARGEST
        for row in np.flatnonzero(strange).tolist():
            reasons.setdefault(row, []).append(f"{name} is {column_values.shown(table[name], row)}, not a number")
        for row in np.flatnonzero(infinite).tolist():
            reasons.setdefault(row, []).append(f"{name} is infinite")
    found = [
        BadSample(f"{path.name} {row_lines.place(path, row + 1)}", "; ".join(reasons[row])) for row in sorted(reasons)
    ]
    notes = bad_samples.check(found, len(table), 1.0 if budget is None else budget, key)
    if len(found) == len(table):
        raise DataError(f"{key}: no row of {path} is usable; {found[0]}", "one row or more", "fix the file")
    keep = np.ones(len(table), np.bool_)
    keep[list(reasons)] = False
    return np.flatnonzero(keep).astype(np.int64), notes


def taken(table: pyarrow.Table, rows: Ids) -> object:
    """Some rows of a pyarrow table."""
    return table.take(rows) if len(rows) < len(table) else table
