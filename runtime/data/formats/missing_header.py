"""Recognizes a CSV file without a header, whose first row would be lost and its cells taken for the names of columns."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from runtime.errors import DataError
from runtime.job.formatting import printable

SHOWN = 6
LEAST = 5
"""Fewer rows say nothing."""


def check(rows: Sequence[Sequence[str]], path: Path, key: str) -> None:
    """Check that the first row of a file is unlike those below.

    It is like them if it has a number over every column of numbers and, over a column of text, one of the texts below; or,
    in a file of numbers alone, numbers that do not ascend as names do, such as years.

    Raises:
        DataError: if it is; names `key`.
    """
    first, below = rows[0], [row for row in rows[1:] if len(row) == len(rows[0]) and row != rows[0]]
    if len(below) < LEAST or len(set(first)) == 1:
        return
    columns = list(zip(*below, strict=True))
    filled = [[cell for cell in cells if cell.strip()] for cells in columns]
    numbers = [place for place, cells in enumerate(filled) if cells and all(map(is_number, cells))]
    texts = [place for place in range(len(first)) if place not in set(numbers)]
    if not all(is_number(first[place]) for place in numbers):
        return
    names = ",".join(f"c{number}" for number in range(1, min(len(first), SHOWN) + 1))
    if texts:
        like = next((first[place] for place in texts if first[place].strip() and first[place] in columns[place]), "")
        given = f"its first row `{printable(', '.join(first), 60)}` is like the rows below, which have `{printable(like, 40)}` too"
    else:
        like = "" if all(one < two for one, two in pairwise(map(float, first))) else first[0]
        given = f"its first row has only numbers: `{printable(', '.join(first), 60)}`"
    if like:
        raise DataError(
            f"{key}: {path} seems to have no header: {given}",
            "a first row with the names of the columns",
            f"write a line with the names above it, such as {names}",
        )


def is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def is_value(name: str, cells: Sequence[str]) -> bool:
    """Whether the name of a column is rather one of its cells: empty, a number, or the same as another."""
    return not name.strip() or is_number(name) or name in cells
