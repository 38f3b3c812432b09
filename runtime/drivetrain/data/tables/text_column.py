"""Refuses text columns that are dates, identifiers or numbers with some text. It needs neither numpy nor pyarrow, so
that `validate` gives the same messages as training.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from drivetrain.data.formats import times
from drivetrain.data.formats.number_marks import MISSING_NUMBERS
from drivetrain.data.notes import list_names
from drivetrain.errors import DataError
from drivetrain.job.formatting import printable

NUMBERS_SHARE = 0.9
"""Smallest share of numbers for which a text column is an error instead of a category."""
DIGITS_SHARE = 0.5
"""Smallest share of filled cells with digits for which a note names a text column."""
MOST_INTEGER_CLASSES = 20
"""Largest number of classes with digits, or of ranges, that are not taken for numbers."""
_LABEL = re.compile(r"[^\W\d_]\D*\d+")
"""Word and whole number, such as store_3 or Q1."""
_RANGE = re.compile(r"\W*\d[\d.,]* ?(?:[-\u2013]| to ) ?\W?\d[\d.,]*\D*")
"""Range, such as 18-24 or [0-10)."""
MAX_CATEGORIES = 50
"""Largest number of distinct texts that always make a text column categorical, however few rows there are."""


def check_distinct(texts: Sequence[str], filled_count: int, name: str, source: str) -> None:
    """Refuse a column of dates, or a column with more distinct `texts` than half of its filled cells.

    Raises:
        DataError: if it is such a column.
    """
    if form := times.find_form(texts, name):
        raise date_column_error(name, source, form if form == times.ISO else f"text such as {texts[0]}", form)
    share, examples, _ = _find_digits(dict.fromkeys(texts, 1))
    digits_text = f", of which {share:.0%} hold digits, such as {examples}" if share >= DIGITS_SHARE else ""
    if len(texts) > max(MAX_CATEGORIES, filled_count / 2):
        raise DataError(
            f'column "{name}" of {source} has {len(texts):,} different texts in {filled_count:,} rows{digits_text}',
            "categories that repeat, or numbers: digits alone, in CSV files also with a percent sign or a currency",
            f"add {name} to data.ignore if it is an identifier, a date or free text, or to data.categorical"
            + ("; data.numeric reads numbers" if all(text.isdigit() for text in texts) else "")
            + ("; write numbers in digits alone" if digits_text and not all(text.isdigit() for text in texts) else ""),
            key="data.train",
        )


def note_digits(name: str, counts: Mapping[str, int]) -> list[str]:
    """Return a line on a text column whose cells mostly hold digits, with examples; `counts` has the rows by cell."""
    share, examples, other_cells = _find_digits(counts)
    padded = next(filter(has_leading_zero, counts), "")
    if share < DIGITS_SHARE:
        return []
    if padded and all(cell.isdecimal() or cell in MISSING_NUMBERS for cell in counts):
        return [f'"{name}" is a category, since `{padded}` has a leading zero; data.numeric: [{name}] reads numbers']
    others_text = f"; the others are {list_names(other_cells, 3)}" if other_cells else ""
    return [
        f'"{name}" is read as text, although {share:.0%} of its cells hold digits, such as {examples}{others_text}; numbers are '
        "digits alone, in CSV files also with % or a currency"
    ]


def has_leading_zero(cell: str) -> bool:
    """Return whether a cell is a whole number with a leading zero, such as 02139: a label."""
    return len(cell) > 1 and cell.startswith("0") and cell.isdecimal()


def note_digit_classes(name: str, counts: Mapping[str, int]) -> list[str]:
    """Return a line, with examples, on a target whose many classes with digits look like numbers."""
    share, examples, _ = _find_digits(counts)
    if len(counts) <= MOST_INTEGER_CLASSES or share < DIGITS_SHARE:
        return []
    return [
        f'"{name}" has {len(counts):,} classes, although {share:.0%} of its cells hold digits, such as {examples}: if they are numbers, '
        "write them in digits alone, and use a regression"
    ]


def _find_digits(counts: Mapping[str, int]) -> tuple[float, str, list[str]]:
    """Return the share of cells with digits that are no labels, three examples, and the other cells by frequency."""
    are_few = len(counts) <= MOST_INTEGER_CLASSES
    labels = {cell for cell in counts if _LABEL.fullmatch(cell) or (are_few and _RANGE.fullmatch(cell))}
    with_digits = [cell for cell in counts if any(map(str.isdigit, cell)) and cell not in labels]
    share = sum(counts[cell] for cell in with_digits) / max(1, sum(counts.values()))
    # Cells that are plain numbers do not show why the column is none.
    with_digits.sort(key=times.is_plain_number)
    other_cells = sorted(counts.keys() - set(with_digits), key=lambda cell: (-counts[cell], cell))
    examples = ", ".join(f"`{printable(cell, 20)}`" for cell in with_digits[:3])
    return share, examples, [f"`{printable(cell, 20)}` ({counts[cell]:,})" for cell in other_cells]


def date_column_error(name: str, source: str, kind: str, form: str | None = None) -> DataError:
    """Return the error for a column of dates without `data.dates`; `form` is the result of `times.find_form`."""
    # The share of the day keeps the seconds, which a duration may have.
    parts = "hour, minute, days" if times.has_clock_alone(form) else "year, month, weekday"
    forms = [repr(one) for one in form.split(" or ")] if form and " or " in form else []
    return DataError(
        f'column "{name}" of {source} is a date ({kind})',
        "numbers or categories",
        f"add {name} to data.ignore, or to data.categorical, or name the numbers to make of it: data.dates: {{{name}: [{parts}]}}"
        + (f" with data.date_format: {' or '.join(forms)}" if forms else ""),
        key="data.train",
    )


def mixed_numbers_error(name: str, source: str, text_count: int, first_text: str) -> DataError:
    """Return the error for a number column with text in some or all cells; `first_text` shows the first such cell."""
    finding = f"are numbers but {text_count:,}: {first_text}" if text_count else "are numbers written as text"
    return DataError(
        f'cells of column "{name}" of {source} {finding}',
        "numbers, or categories",
        f"fix the cells, or add {name} to data.numeric (rows without a number are skipped) or to data.categorical",
        key="data.train",
    )
