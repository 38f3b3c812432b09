"""Refuses CSV files whose quotes are not those of CSV: a quote in a cell is written "", and cells stand in double quotes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from runtime.data.formats.csv_dialect import SIGNS
from runtime.errors import DataError
from runtime.job.formatting import printable

BLOCK = 1 << 22
_SEPARATORS = re.escape("".join(SIGNS.values())).encode()
_ESCAPED = re.compile(rb'\\"(?=[^"' + _SEPARATORS + rb"\s])")
"""A backslash and a quote inside of a cell: in CSV, the quote would end the cell, and a separator would follow."""
_JSON = re.compile(rb"[{\[]")


def check(path: Path, key: str, names: Sequence[str]) -> None:
    """Check a file for quotes behind a backslash, and the header for apostrophes around each name.

    Raises:
        DataError: if there are any; names `key`.
        OSError: if the file cannot be read.
    """
    if names and all(len(name) > 1 and name[0] == name[-1] == "'" for name in names):
        raise DataError(
            f"{key}: {path} has apostrophes around its cells: {printable(', '.join(names), 60)}",
            'double quotes around cells, as in "a, b"',
            "write the file again with double quotes, or without any where no cell needs them",
        )
    if line := _escaped(path):
        number, text = line
        raise DataError(
            f"{key}: {path} line {number}: a quote is written with a backslash: `{printable(text, 60)}`",
            'a quote inside of a cell is written ""',
            'write the file again: in R with write.csv or qmethod = "double", in pandas with doublequote=True',
        )


def _escaped(path: Path) -> tuple[int, str] | None:
    """The first line with such a quote, and its number."""
    if not _has_any(path):
        return None
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            # Programs write JSON into cells, with its own backslashes.
            if _ESCAPED.search(line) and not _JSON.search(line):
                return number, line.decode("utf-8", "replace").strip()
    return None


def _has_any(path: Path) -> bool:
    """Whether the file has a backslash before a quote at all, which few have."""
    with path.open("rb") as file:
        last = b""
        while block := file.read(BLOCK):
            if b'\\"' in last + block:
                return True
            last = block[-1:]
    return False
