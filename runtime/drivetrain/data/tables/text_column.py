"""Which columns of text are dates or no features, and why; without numpy and pyarrow, so that `validate` says what training says."""

from __future__ import annotations

import re
from collections.abc import Sequence

from drivetrain.errors import DataError

_DATE_TEXT = re.compile(r"(\d{1,4})([./-])(\d{1,2})\2(\d{1,4})(?:[ T](\d{1,2}:\d{2}(:\d{2})?))?")
DATES_SHARE = 0.9
"""Share of the different texts that are dates."""
NUMBERS_SHARE = 0.9
"""A text column with at least this share of numbers is an error instead of a category."""
MAX_CATEGORIES = 50
"""Up to this many distinct texts are categories, whatever the number of rows."""


def is_date_text(text: str) -> bool:
    """Whether a text is a date such as 13.09.2025 or 13/09/2025 08:30, which is not read as one without its form."""
    return _DATE_TEXT.fullmatch(text) is not None


def date_form(texts: Sequence[str]) -> str | None:
    """The form of a column of dates as in strptime; two joined by ` or ` if day and month look alike; None for others."""
    matches = [match for text in texts if (match := _DATE_TEXT.fullmatch(text.strip()))]
    if len(texts) < 2 or len(matches) < DATES_SHARE * len(texts):
        return None
    first, mark, clock = matches[0], matches[0][2], " %H:%M:%S" if matches[0][6] else " %H:%M" if matches[0][5] else ""
    if len(first[1]) == 4:
        return f"%Y{mark}%m{mark}%d{clock}"
    year = "%Y" if len(first[4]) == 4 else "%y"
    day_first = any(int(match[1]) > 12 for match in matches) or mark == "."
    month_first = any(int(match[3]) > 12 for match in matches)
    if day_first and month_first:
        return None
    forms = {"d": f"%d{mark}%m{mark}{year}{clock}", "m": f"%m{mark}%d{mark}{year}{clock}"}
    return forms["d"] if day_first else forms["m"] if month_first else f"{forms['d']} or {forms['m']}"


def check_distinct(texts: Sequence[str], present: int, name: str, source: str) -> None:
    """Refuse dates, and text with a different value in nearly every row.

    Args:
        texts: the distinct texts of the column.
        present: its filled cells.
        name: of the column.
        source: the file, for messages.

    Raises:
        DataError: if it is one of them.
    """
    if dates := date_form(texts):
        raise DataError(
            f'data.train: column "{name}" of {source} has dates as text, such as {texts[0]}',
            "numbers or categories",
            f"add {name} to data.ignore, or to data.categorical, or name the numbers to make of it: data.dates: "
            f"{{{name}: [year, month, weekday]}} with data.date_format: {' or '.join(map(repr, dates.split(' or ')))}",
        )
    if len(texts) > max(MAX_CATEGORIES, present / 2):
        raise DataError(
            f'data.train: column "{name}" of {source} has {len(texts):,} different texts in {present:,} rows',
            "categories that repeat",
            f"add {name} to data.ignore if it is an identifier, a date or free text, or to data.categorical",
        )


def dates(name: str, source: str, kind: str) -> DataError:
    """The error for a column of dates of which the job makes no numbers."""
    return DataError(
        f'data.train: column "{name}" of {source} is a date ({kind})',
        "numbers or categories",
        f"add {name} to data.ignore, or name the numbers to make of it: data.dates: {{{name}: [year, month, weekday]}}",
    )


def spoilt(name: str, source: str, wrong: int, first: str) -> DataError:
    """The error for a column of numbers in which some cells, or all, are text.

    Args:
        name: of the column.
        source: the file.
        wrong: cells that are no numbers.
        first: the place of the first of them, and its text.
    """
    those = f"are numbers but {wrong:,}: {first}" if wrong else "are numbers written as text"
    return DataError(
        f'data.train: cells of column "{name}" of {source} {those}',
        "numbers, or categories",
        f"fix the cells, or add {name} to data.numeric (rows without a number are skipped) or to data.categorical",
    )
