"""Protects CSV cells from formula injection: text that a spreadsheet would run as a formula gets an apostrophe.

Class names, paths and column names come from the data. Numbers stay numbers, also negative ones written as text. JSON
lines are not changed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

_BEGINS = tuple(
    "=+-@\t\r\n\N{FULLWIDTH EQUALS SIGN}\N{FULLWIDTH PLUS SIGN}\N{FULLWIDTH HYPHEN-MINUS}\N{FULLWIDTH COMMERCIAL AT}"
)
"""Characters with which a formula can start."""
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?")


def escape_cell(value: object) -> Any:
    """A value for a CSV writer."""
    if not isinstance(value, str) or _NUMBER.fullmatch(value.strip(" ")):
        return value
    # Some spreadsheets strip spaces before they look at the first character.
    return f"'{value}" if value.startswith(_BEGINS) or value.lstrip().startswith(_BEGINS) else value


def escape_row(values: Iterable[object]) -> list[object]:
    """A row for a CSV writer."""
    return [escape_cell(value) for value in values]
