"""Names rows of a table: `row 7`, and in a CSV file `row 7 (line 8)`, the line that an editor shows."""

from __future__ import annotations

import os
import re
from array import array
from functools import lru_cache
from pathlib import Path

SUFFIXES = (".csv", ".tsv")
MAX_COUNTED_BYTES = 1 << 26
"""Largest file, in bytes, whose lines are counted; for larger ones only the row is named."""
_TOKEN = re.compile(r'(?:(?<=[,;\t|\n\r])|^)"(?:[^"]|"")*"|\r\n|\n|\r')
"""A cell in quotes, which may have line breaks, or the end of a line."""
_SEPARATOR_LINE = re.compile(r'"?sep=.?"?[;,\t]*', re.IGNORECASE)


_skipped: dict[Path, int] = {}
"""Lines above the header of a file, where there are some."""


def note_skipped(path: Path, lines: int) -> None:
    """Remember how many lines a file has above its header, so that `place` counts from the right line."""
    if lines or path in _skipped:
        _skipped[path] = lines


def place(path: Path | str, row: int) -> str:
    """Name a row below the header, from 1, and in a CSV file its line."""
    line = _find_line(Path(path), row)
    return f"row {row:,} (line {line:,})" if line else f"row {row:,}"


def _find_line(path: Path, row: int) -> int:
    """The line on which a row starts; 0 if it is not known."""
    if path.suffix.lower() not in SUFFIXES:
        return 0
    try:
        status = os.stat(path)
        if status.st_size > MAX_COUNTED_BYTES or not os.path.isfile(path):
            return 0
        lines = _list_row_lines(path, status.st_mtime_ns, status.st_size, _skipped.get(path, 0))
    except (OSError, ValueError):
        return 0
    return lines[row] if row < len(lines) else 0


@lru_cache(maxsize=4)
def _list_row_lines(path: Path, changed: int, size: int, skipped: int) -> array[int]:
    """The line on which each row starts, that of the header first; empty lines are no rows."""
    content = path.read_bytes().removeprefix(b"\xef\xbb\xbf")
    text = content.decode("utf-16" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else "latin-1", "replace")
    starts = array("I")
    line, first, start = 1, 1, 0
    for token in _TOKEN.finditer(text):
        line += token[0].count("\n") + token[0].count("\r") - token[0].count("\r\n")
        if token[0][0] != '"':
            if first > skipped:
                _add_row(starts, text[start : token.start()], first)
            start, first = token.end(), line
    _add_row(starts, text[start:], first)
    return starts


def _add_row(starts: array[int], row: str, line: int) -> None:
    """Add the line of a row; empty lines and a first line `sep=;` are no rows."""
    if row and not (line == 1 and _SEPARATOR_LINE.fullmatch(row)):
        starts.append(line)
