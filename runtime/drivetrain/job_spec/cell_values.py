"""Tells numbers, dates and other texts apart in the cells of a CSV file, without numpy and pyarrow."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from pathlib import Path

from drivetrain.data.formats import csv_dialect, times
from drivetrain.data.formats.number_marks import MISSING_NUMBERS, UNITS
from drivetrain.data.tables import text_column
from drivetrain.job.formatting import printable

_SIGN = "[-+\u2212\ufe63\uff0d]"
_UNIT = (
    rf"\s*[%€$£]|\s*°\S{{0,4}}|\s+[^\d\s.,;:()'\"+\-][^,;:()]{{0,15}}|(?-i:{'|'.join(map(re.escape, sorted(UNITS)))})"
)
_NUMBER = re.compile(
    rf"\(?\s*(?:{_SIGN}|\u2013)?\s*[%€$£]?{_SIGN}?[\d.,'\s\u2019]*\d[\d.,'\s\u2019]*(?:e{_SIGN}?\d+)?(?:{_UNIT})?\)?-?"
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

    def add(self, cell: str, row: int) -> None:
        """Count a cell."""
        if cell in MISSING_NUMBERS:
            return
        self.filled += 1
        if is_number(cell) and not times.is_written_time(cell):
            self.numbers += 1
        else:
            self.texts.setdefault(cell, row)

    def check(self, name: str, path: Path) -> None:
        """Check that the column can be a feature, as training does; raises DataError if it cannot."""
        if not self.texts:
            return
        only_letters = all(any(map(str.isalpha, text)) and not any(map(str.isdigit, text)) for text in self.texts)
        mostly_numbers = self.numbers >= text_column.NUMBERS_SHARE * self.filled
        if only_letters and mostly_numbers and len(self.texts) <= MAX_ODD_TEXTS:
            text, row = next(iter(self.texts.items()))
            text_count = self.filled - self.numbers
            raise text_column.mixed_numbers_error(
                name, str(path), text_count, f"{csv_dialect.name_row(path, row)} has `{printable(text, 40)}`"
            )
        if self.numbers:
            return
        if all(times.is_time(text, times.ISO) for text in self.texts):
            raise text_column.date_column_error(name, str(path), next(iter(self.texts)))
        text_column.check_distinct(list(self.texts), self.filled, name, str(path))


def is_number(cell: str) -> bool:
    """Whether a cell is empty, a truth value, or a number in any form that the reader of the data knows."""
    try:
        float(cell)
    except ValueError:
        return cell in MISSING_NUMBERS or cell.lower() in _TRUTH or _NUMBER.fullmatch(cell) is not None
    return True


def is_infinite(cell: str) -> bool:
    """Whether a cell is a number, but no finite one."""
    try:
        return math.isinf(float(cell))
    except ValueError:
        return False


def read_value(cell: str) -> float | None:
    """The number or truth value of a cell; None if it is written in another form."""
    if cell.lower() in _TRUTH:
        return float(cell.lower() == "true")
    try:
        value = float(cell)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
