"""Escapes text of data, for a terminal and for the cells of a spreadsheet.

A class name, a file name or a message of a server may hold anything. Printed raw, `\\x1b]0;...` changes a terminal, and a line
break prints a line that looks like one of ours. A spreadsheet runs a cell that begins like a formula, so such a cell gets an
apostrophe; numbers stay numbers, also negative ones written as text, and JSON lines are not changed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

_CONTROL_CHARACTERS = "\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff"
"""Control characters, separators of lines, changes of direction, and halves of characters, which no encoding has."""
_CONTROL = re.compile(f"[{_CONTROL_CHARACTERS}]")
_CONTROL_AND_BREAKS = re.compile(f"[{_CONTROL_CHARACTERS}\t\n]")
_CONTROL_AND_DATA_BREAKS = re.compile(f"[{_CONTROL_CHARACTERS}]|\n(?! |$)")
_FORMULA_STARTS = tuple(
    "=+-@\t\r\n\N{FULLWIDTH EQUALS SIGN}\N{FULLWIDTH PLUS SIGN}\N{FULLWIDTH HYPHEN-MINUS}\N{FULLWIDTH COMMERCIAL AT}"
)
"""Characters that can start a formula."""
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?")


def printable(text: str) -> str:
    """Put data for a message on one line, with `\\n` for a line break and `\\x1b` for an escape."""
    return _CONTROL_AND_BREAKS.sub(_escape, text)


def printable_lines(text: str) -> str:
    """Indent the lines of a message after the first one; a line break before anything else is from data."""
    return _CONTROL_AND_DATA_BREAKS.sub(_escape, text)


def printable_as_long(text: str) -> str:
    """Clean a message like `printable_lines`, with as many characters as before, for text with styles in it."""
    return _CONTROL_AND_DATA_BREAKS.sub("\N{REPLACEMENT CHARACTER}", text)


def printable_text(text: str) -> str:
    """Return a whole text with the line breaks and tabs that it has, such as a page of a report."""
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)


def printable_json(text: str) -> str:
    """Write characters that a terminal must not get as `\\u001b`, so that strings of JSON mean the same."""
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _escape(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode()


def escape_cell(value: object) -> Any:
    """Return a value for a CSV writer."""
    if not isinstance(value, str) or _NUMBER.fullmatch(value.strip(" ")):
        return value
    # Some spreadsheets strip spaces before they look at the first character.
    return f"'{value}" if value.startswith(_FORMULA_STARTS) or value.lstrip().startswith(_FORMULA_STARTS) else value


def escape_row(values: Iterable[object]) -> list[object]:
    """Return a row for a CSV writer."""
    return [escape_cell(value) for value in values]
