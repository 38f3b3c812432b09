"""Recognizes columns of text that are dates in a form that is not read as such: 13.09.2025, 13/09/2025 08:30."""

from __future__ import annotations

import re
from collections.abc import Sequence

_DATE = re.compile(r"(\d{1,4})([./-])(\d{1,2})\2(\d{1,4})(?:[ T](\d{1,2}:\d{2}(:\d{2})?))?")
MOSTLY = 0.9
"""Share of the different texts that are dates."""


def is_date(text: str) -> bool:
    """Whether a text has the form of such a date."""
    return _DATE.fullmatch(text) is not None


def form(texts: Sequence[str]) -> str | None:
    """The form of the dates as in strptime, two joined by ` or ` if day and month cannot be told apart; None for others."""
    found = [match for text in texts if (match := _DATE.fullmatch(text.strip()))]
    if len(texts) < 2 or len(found) < MOSTLY * len(texts):
        return None
    first, mark, clock = found[0], found[0][2], " %H:%M:%S" if found[0][6] else " %H:%M" if found[0][5] else ""
    if len(first[1]) == 4:
        return f"%Y{mark}%m{mark}%d{clock}"
    year = "%Y" if len(first[4]) == 4 else "%y"
    day_first = any(int(match[1]) > 12 for match in found) or mark == "."
    month_first = any(int(match[3]) > 12 for match in found)
    if day_first and month_first:
        return None
    forms = {"d": f"%d{mark}%m{mark}{year}{clock}", "m": f"%m{mark}%d{mark}{year}{clock}"}
    return forms["d"] if day_first else forms["m"] if month_first else f"{forms['d']} or {forms['m']}"
