"""Rows of a CSV file, read without pyarrow, and their names: `row 7 (line 8)`, with the line that an editor shows."""

from __future__ import annotations

import csv
import os
from array import array
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

SUFFIXES = (".csv", ".tsv")
MAX_COUNTED_BYTES = 1 << 26
"""Largest file, in bytes, whose lines are counted; for larger ones only the row is named."""
_forms: dict[str, tuple[str, str, int]] = {}
"""By absolute path: the sign between the cells of a file, its encoding, and the number of lines above its header."""


def note_form(path: Path, sign: str, encoding: str, skipped: int) -> None:
    """Remember how a file is written, so that `place` finds its lines."""
    _forms[os.path.abspath(path)] = sign, encoding, skipped


def read_rows(
    path: Path, sign: str, encoding: str, skipped: int, errors: str = "strict"
) -> Iterator[tuple[int, list[str]]]:
    """Yield the cells of each row, the header first, with the line on which it starts; empty lines are no rows."""
    # The byte order mark is no part of the first name.
    codec = "utf-8-sig" if encoding == "utf-8" else encoding
    with path.open(encoding=codec, errors=errors, newline="") as file:
        for _ in range(skipped):
            file.readline()
        rows, line = csv.reader(file, delimiter=sign), skipped + 1
        for cells in rows:
            if cells:
                yield line, cells
            line = skipped + rows.line_num + 1


def place(path: Path | str, row: int) -> str:
    """Name a row below the header, from 1, and in a CSV file that was read its line."""
    line = _find_line(Path(path), row)
    return f"row {row:,} (line {line:,})" if line else f"row {row:,}"


def _find_line(path: Path, row: int) -> int:
    """The line on which a row starts; 0 if it is not known."""
    form = _forms.get(os.path.abspath(path))
    if form is None:
        return 0
    try:
        status = os.stat(path)
        if status.st_size > MAX_COUNTED_BYTES:
            return 0
        lines = _list_row_lines(path, status.st_mtime_ns, status.st_size, form)
    except (OSError, csv.Error):
        return 0
    return lines[row] if row < len(lines) else 0


@lru_cache(maxsize=4)
def _list_row_lines(path: Path, changed: int, size: int, form: tuple[str, str, int]) -> array[int]:
    """The line on which each row starts, that of the header first."""
    return array("I", (line for line, _ in read_rows(path, *form, errors="replace")))
