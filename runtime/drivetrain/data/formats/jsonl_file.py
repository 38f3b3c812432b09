"""Reads JSON lines, one object per line, as a table whose columns are the keys."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow
from pyarrow import ArrowInvalid, schema, string, types
from pyarrow import json as reader

from drivetrain.data.decoded_size import DecodedSize
from drivetrain.errors import DataError
from drivetrain.job.formatting import printable
from drivetrain.system.files import parse_json

EMPTY_CELL_BYTES = 4
"""Bytes counted for an empty cell: in a column of numbers it takes 8, in a column of truth values a bit."""
SHORTEST_LINE = len(b'{"a":1}')
"""Bytes of the shortest line with a key."""
_KEY = re.compile(rb'"([^"\\]*(?:\\.[^"\\]*)*)"\s*:')
_TYPE_NAMES: dict[type, str] = {bool: "true or false", str: "text", list: "a list", dict: "an object"}
_TYPE_NAMES |= dict.fromkeys((int, float), "a number")
"""Types of cells, in words; null has none."""
LARGEST_BLOCK = 1 << 28
"""Largest number of bytes read at once from a file with long lines."""


class JsonlReader:
    """Reader of one file."""

    def __init__(self, path: Path, key: str) -> None:
        self.path, self.key = path, key

    def names(self) -> list[str]:
        """Return all keys, in the order of their first occurrence.

        Raises:
            DataError: if a line is not an object, or a key changes its type.
        """
        with self.path.open("rb") as file:
            _check_keys(file, self.path.stat().st_size, self.path, self.key)
        return list(_read_table(self.path, self.key).column_names)

    def read(self, columns: Sequence[str], text: Sequence[str]) -> pyarrow.Table:
        """Read these columns; a key missing from a line gives an empty cell."""
        table = _read_table(self.path, self.key)
        # The reader drops the zone of a time, and writes times in another form: they are read as text.
        times = [field.name for field in table.schema if types.is_temporal(field.type)]
        if times:
            table = _read_table(self.path, self.key, schema([(name, string()) for name in times]))
        return table.select(list(columns))

    def head(self, rows: int) -> tuple[pyarrow.Table, int]:
        """Read the first rows; also returns the approximate number of all rows."""
        with self.path.open("rb") as file:
            lines = list(islice(file, rows))
        size = sum(map(len, lines))
        _check_keys(lines, size, self.path, self.key)
        table = reader.read_json(io.BytesIO(b"".join(lines)), reader.ReadOptions(block_size=size + 1))
        return table, max(len(table), len(table) * self.path.stat().st_size // max(1, size))


def _read_table(path: Path, key: str, schema: object = None) -> pyarrow.Table:
    parsing = reader.ParseOptions(explicit_schema=schema)
    try:
        return reader.read_json(path, parse_options=parsing)
    except ArrowInvalid:
        _check_lines(path, key)
        # A line may not fit into a block.
        size = min(LARGEST_BLOCK, path.stat().st_size + 1)
        return reader.read_json(path, reader.ReadOptions(block_size=size), parsing)


def _check_keys(lines: Iterable[bytes], size: int, path: Path, key: str) -> None:
    """Check that a table of some lines fits into memory: each line has a cell for each key of any line.

    Args:
        lines: lines to check.
        size: total bytes of the lines.
    """
    cells = DecodedSize(str(path), key)
    if EMPTY_CELL_BYTES * (size // SHORTEST_LINE) ** 2 <= cells.limit:
        return
    names = set[bytes]()
    for number, line in enumerate(lines, 1):
        names.update(_KEY.findall(line))
        cells.add(EMPTY_CELL_BYTES * number * len(names) - cells.size)


def _check_lines(path: Path, key: str) -> None:
    """Read line by line to find a line that cannot be parsed. The caller reports other failures."""
    first_uses: dict[str, tuple[str, int]] = {}
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            line_title = f"{path} line {number}"
            try:
                value = _parse_object(line, line_title) if line.strip() else {}
            except UnicodeDecodeError:
                return
            except ValueError as error:
                possible = 'one JSON object in each line: {"text": "...", "label": "..."}'
                raise DataError(str(error), possible, "fix the line", key=key) from None
            for name, cell in value.items():
                kind = _TYPE_NAMES.get(type(cell), "")
                first_kind, first_line = first_uses.setdefault(name, (kind, number)) if kind else ("", 0)
                if kind and kind != first_kind:
                    description = f'{line_title}: "{name}" is {kind}, in line {first_line} it is {first_kind}'
                    action = "write all of them as text, or as numbers"
                    raise DataError(description, "one type for each key", action, key=key)


def _parse_object(line: bytes, line_title: str) -> dict[str, Any]:
    """Parse the object in a line.

    Raises:
        UnicodeDecodeError: if the line is not UTF-8.
        ValueError: with the title of the line and the problem.
    """
    try:
        value = parse_json(line)
    except json.JSONDecodeError as error:
        description = f"{line_title}, column {error.colno}: {error.msg.lower()}: {_quote_line(line)}"
        raise ValueError(description) from None
    except UnicodeDecodeError:
        raise
    except ValueError as error:
        raise ValueError(f"{line_title}: {error}: {_quote_line(line)}") from None
    if not isinstance(value, dict):
        raise ValueError(f"{line_title} is not an object: {_quote_line(line)}")
    return value


def _quote_line(line: bytes) -> str:
    return printable(line.decode("utf-8", "replace").strip())
