"""Cells: texts in a CSV file that a spreadsheet would run as a formula get an apostrophe, by which it shows them as text.

Class names, paths and column names come from whoever made the data. Numbers stay numbers, also negative ones that are
written as text. JSON lines hold everything as it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

_BEGINS = tuple(
    "=+-@\t\r\n\N{FULLWIDTH EQUALS SIGN}\N{FULLWIDTH PLUS SIGN}\N{FULLWIDTH HYPHEN-MINUS}\N{FULLWIDTH COMMERCIAL AT}"
)
"""What a formula can begin with."""
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?")


def cell(value: Any) -> Any:
    """A value for a CSV writer."""
    if not isinstance(value, str) or _NUMBER.fullmatch(value.strip(" ")):
        return value
    # Some spreadsheets drop spaces before they look at what a cell begins with.
    return f"'{value}" if value.startswith(_BEGINS) or value.lstrip().startswith(_BEGINS) else value


def row(values: Iterable[Any]) -> list[Any]:
    """A row for a CSV writer."""
    return [cell(value) for value in values]
