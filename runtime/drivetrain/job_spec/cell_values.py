"""Tells numbers, dates and other texts apart in the cells of a CSV file, without numpy and pyarrow."""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from drivetrain.data.formats import csv_dialect, times
from drivetrain.data.formats.number_marks import MISSING_NUMBERS
from drivetrain.data.tables import text_column
from drivetrain.job.formatting import printable

_SIGN = "[-+\u2212\ufe63\uff0d]"
_DIGITS = r"(?:\d{1,3}(?:[.,'\s\u2019]\d{3})+(?:[.,]\d*)?|\d+(?:[.,]\d*)?|[.,]\d+)"
_NUMBER = re.compile(
    rf"\(?\s*(?:{_SIGN}|\u2013)?\s*[%€$£]?{_SIGN}?\s*{_DIGITS}(?:e{_SIGN}?\d+)?(?:\s*[%€$£])?\)?-?"
    "|[-+]?inf(?:inity)?",
    re.I,
)
MAX_ODD_TEXTS = 2
"""Up to this many distinct texts among numbers are taken for units or totals; more may be marks of missing values."""
_TRUTH = {"true", "false"}


@dataclass
class FeatureCells:
    """Counts of the cells of a column, which decide whether it can be a feature."""

    filled: int = 0
    numbers: int = 0
    texts: dict[str, int] = field(default_factory=dict)
    """The first row of each distinct text that is no number."""
    counts: Counter[str] = field(default_factory=Counter)
    """The rows of each distinct cell."""

    def add(self, cell: str, row: int) -> None:
        """Count a cell."""
        if cell in MISSING_NUMBERS:
            return
        self.filled += 1
        self.counts[cell] += 1
        if is_number(cell) and not text_column.has_leading_zero(cell):
            self.numbers += 1
        else:
            self.texts.setdefault(cell, row)

    def check(self, name: str, path: Path) -> list[str]:
        """Check that the column can be a feature, as training does; returns a note on digits in text.

        Raises:
            DataError: if it cannot.
        """
        if not self.texts:
            return []
        only_letters = all(any(map(str.isalpha, text)) and not any(map(str.isdigit, text)) for text in self.texts)
        mostly_numbers = self.numbers >= text_column.NUMBERS_SHARE * self.filled
        if only_letters and mostly_numbers and len(self.texts) <= MAX_ODD_TEXTS:
            text, row = next(iter(self.texts.items()))
            text_count = self.filled - self.numbers
            raise text_column.mixed_numbers_error(
                name, str(path), text_count, f"{csv_dialect.name_row(path, row)} has `{printable(text, 40)}`"
            )
        # Whole numbers, some with a leading zero, are labels.
        if self.numbers and not all(map(str.isdecimal, self.counts)):
            return text_column.note_digits(name, self.counts)
        if all(times.is_time(text, times.ISO) for text in self.texts):
            raise text_column.date_column_error(name, str(path), next(iter(self.texts)))
        text_column.check_distinct(list(self.counts), self.filled, name, str(path))
        return text_column.note_digits(name, self.counts)


def is_number(cell: str) -> bool:
    """Return whether a cell is empty, a truth value, or a number in any form that the reader of the data knows."""
    try:
        float(cell)
    except ValueError:
        return cell in MISSING_NUMBERS or cell.lower() in _TRUTH or _NUMBER.fullmatch(cell) is not None
    return True


def is_infinite(cell: str) -> bool:
    """Return whether a cell is a number, but no finite one."""
    try:
        return math.isinf(float(cell))
    except ValueError:
        return False


def read_value(cell: str) -> float | None:
    """Read the number or truth value of a cell; None if it is written in another form."""
    if cell.lower() in _TRUTH:
        return float(cell.lower() == "true")
    try:
        value = float(cell)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
