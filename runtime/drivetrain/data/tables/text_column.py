"""Refuses text columns that are dates, identifiers or spoilt numbers. It needs neither numpy nor pyarrow, so that `validate`
gives the same messages as training.
"""

from __future__ import annotations

from collections.abc import Sequence

from drivetrain.data.formats import times
from drivetrain.errors import DataError

NUMBERS_SHARE = 0.9
"""A text column with at least this share of numbers is an error instead of a category."""
MAX_CATEGORIES = 50
"""A text column with at most this many distinct texts is always categorical, whatever the number of rows."""


def check_distinct(texts: Sequence[str], filled_count: int, name: str, source: str) -> None:
    """Refuse a column of dates, or with nearly as many distinct `texts` as it has filled cells.

    Raises:
        DataError: if it is such a column.
    """
    if form := times.find_form(texts):
        raise date_column_error(name, source, form if form == times.ISO else f"text such as {texts[0]}", form)
    if len(texts) > max(MAX_CATEGORIES, filled_count / 2):
        raise DataError(
            f'data.train: column "{name}" of {source} has {len(texts):,} different texts in {filled_count:,} rows',
            "categories that repeat",
            f"add {name} to data.ignore if it is an identifier, a date or free text, or to data.categorical",
        )


def date_column_error(name: str, source: str, kind: str, form: str | None = None) -> DataError:
    """The error for a column of dates of which the job makes no numbers; `form` is the result of `times.find_form`."""
    parts = "hour, minute" if times.has_clock_alone(form) else "year, month, weekday"
    forms = [repr(one) for one in form.split(" or ")] if form and " or " in form else []
    return DataError(
        f'data.train: column "{name}" of {source} is a date ({kind})',
        "numbers or categories",
        f"add {name} to data.ignore, or to data.categorical, or name the numbers to make of it: data.dates: {{{name}: [{parts}]}}"
        + (f" with data.date_format: {' or '.join(forms)}" if forms else ""),
    )


def mixed_numbers_error(name: str, source: str, text_count: int, first_text: str) -> DataError:
    """The error for a column of numbers of which some cells, or all, are text; with place and text of the first of them."""
    finding = f"are numbers but {text_count:,}: {first_text}" if text_count else "are numbers written as text"
    return DataError(
        f'data.train: cells of column "{name}" of {source} {finding}',
        "numbers, or categories",
        f"fix the cells, or add {name} to data.numeric (rows without a number are skipped) or to data.categorical",
    )
