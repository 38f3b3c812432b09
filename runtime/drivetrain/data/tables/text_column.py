"""Refuses text columns that are dates, identifiers or spoilt numbers. It needs neither numpy nor pyarrow, so that `validate`
gives the same messages as training.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from drivetrain.errors import DataError

_DATE_TEXT = re.compile(r"(\d{1,4})([./-])(\d{1,2})\2(\d{1,4})(?:[ T](\d{1,2}:\d{2}(:\d{2})?))?")
DATES_SHARE = 0.9
"""A text column is taken for dates if at least this share of its distinct texts are dates."""
NUMBERS_SHARE = 0.9
"""A text column with at least this share of numbers is an error instead of a category."""
MAX_CATEGORIES = 50
"""A text column with at most this many distinct texts is always categorical, whatever the number of rows."""


def is_date_text(text: str) -> bool:
    """Whether a text is a date such as 13.09.2025 or 13/09/2025 08:30, for which the job must give the format."""
    return _DATE_TEXT.fullmatch(text) is not None


def guess_date_format(texts: Sequence[str]) -> str | None:
    """The format of dates, as in strptime; None if the texts are no dates.

    If days and months cannot be told apart, both formats, joined by ` or `.
    """
    matches = [match for text in texts if (match := _DATE_TEXT.fullmatch(text.strip()))]
    if len(texts) < 2 or len(matches) < DATES_SHARE * len(texts):
        return None
    first_match, separator = matches[0], matches[0][2]
    time_format = " %H:%M:%S" if first_match[6] else " %H:%M" if first_match[5] else ""
    if len(first_match[1]) == 4:
        return f"%Y{separator}%m{separator}%d{time_format}"
    year = "%Y" if len(first_match[4]) == 4 else "%y"
    day_first = any(int(match[1]) > 12 for match in matches) or separator == "."
    month_first = any(int(match[3]) > 12 for match in matches)
    if day_first and month_first:
        return None
    day_format = f"%d{separator}%m{separator}{year}{time_format}"
    month_format = f"%m{separator}%d{separator}{year}{time_format}"
    if day_first:
        return day_format
    return month_format if month_first else f"{day_format} or {month_format}"


def check_distinct(texts: Sequence[str], filled_count: int, name: str, source: str) -> None:
    """Refuse a column of dates, or with nearly as many distinct `texts` as it has filled cells.

    Raises:
        DataError: if it is such a column.
    """
    if date_format := guess_date_format(texts):
        raise DataError(
            f'data.train: column "{name}" of {source} has dates as text, such as {texts[0]}',
            "numbers or categories",
            f"add {name} to data.ignore, or to data.categorical, or name the numbers to make of it: data.dates: "
            f"{{{name}: [year, month, weekday]}} with data.date_format: {' or '.join(map(repr, date_format.split(' or ')))}",
        )
    if len(texts) > max(MAX_CATEGORIES, filled_count / 2):
        raise DataError(
            f'data.train: column "{name}" of {source} has {len(texts):,} different texts in {filled_count:,} rows',
            "categories that repeat",
            f"add {name} to data.ignore if it is an identifier, a date or free text, or to data.categorical",
        )


def date_column_error(name: str, source: str, kind: str) -> DataError:
    """The error for a column of dates of which the job makes no numbers."""
    return DataError(
        f'data.train: column "{name}" of {source} is a date ({kind})',
        "numbers or categories",
        f"add {name} to data.ignore, or name the numbers to make of it: data.dates: {{{name}: [year, month, weekday]}}",
    )


def mixed_numbers_error(name: str, source: str, text_count: int, first_text: str) -> DataError:
    """The error for a column of numbers of which some cells, or all, are text; with place and text of the first of them."""
    finding = f"are numbers but {text_count:,}: {first_text}" if text_count else "are numbers written as text"
    return DataError(
        f'data.train: cells of column "{name}" of {source} {finding}',
        "numbers, or categories",
        f"fix the cells, or add {name} to data.numeric (rows without a number are skipped) or to data.categorical",
    )
