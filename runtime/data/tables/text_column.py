"""Which columns of text are no features, and why; without numpy and pyarrow, so that `validate` says what training says."""

from __future__ import annotations

from collections.abc import Sequence

from runtime.data.tables import date_texts
from runtime.errors import DataError

MOSTLY = 0.9
"""A text column with at least this share of numbers is an error instead of a category."""
FEW = 50
"""Up to this many distinct texts are categories, whatever the number of rows."""


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
    if dates := date_texts.form(texts):
        raise DataError(
            f'data.train: column "{name}" of {source} has dates as text, such as {texts[0]}',
            "numbers or categories",
            f"add {name} to data.ignore, or to data.categorical, or name the numbers to make of it: data.dates: "
            f"{{{name}: [year, month, weekday]}} with data.date_format: {' or '.join(map(repr, dates.split(' or ')))}",
        )
    if len(texts) > max(FEW, present / 2):
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
