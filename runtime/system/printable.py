"""Text of data in a form that a terminal only shows: no escape sequences, no line breaks, nothing that turns a line around.

A class name, a file name or a message of a server may hold anything. Printed raw, `\\x1b]0;...` changes a terminal, and a line
break prints a line that looks like one of ours.
"""

from __future__ import annotations

import re

_ALWAYS = "\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff"
"""Control characters, separators of lines, changes of direction, and halves of characters, which no encoding has."""
_CONTROL = re.compile(f"[{_ALWAYS}]")
_DATA = re.compile(f"[{_ALWAYS}\t\n]")
_LINES = re.compile(f"[{_ALWAYS}]|\n(?! |$)")


def printable(text: str) -> str:
    """Data for a message: on one line, with `\\n` for a line break and `\\x1b` for an escape."""
    return _DATA.sub(_escaped, text)


def printable_lines(text: str) -> str:
    """A message, whose lines after the first one are indented; a line break before anything else is from data."""
    return _LINES.sub(_escaped, text)


def printable_as_long(text: str) -> str:
    """A message as `printable_lines` lets it be, with as many characters as before, for text with styles in it."""
    return _LINES.sub("\N{REPLACEMENT CHARACTER}", text)


def printable_text(text: str) -> str:
    """A whole text with the line breaks and tabs that it has, such as a page of a report."""
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)


def printable_json(text: str) -> str:
    """JSON whose strings mean the same, with what a terminal must not get as `\\u001b`."""
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _escaped(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()
