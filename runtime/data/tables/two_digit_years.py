"""Years of two digits: 40 is 1940 in dates of birth and 2040 in dates of expiry, and strptime always takes the second."""

from __future__ import annotations

import re
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

from runtime.data.formats import column_values, row_lines
from runtime.errors import DataError

_FORM = re.compile(r"%[yDxcg]")


def has(form: str | None) -> bool:
    """Whether dates in this form, as in strptime, have years of two digits."""
    return form is not None and _FORM.search(form.replace("%%", "")) is not None


def check(texts: Any, times: Any, name: str, path: Path, key: str, option: str) -> None:
    """Check that no date is later than this year, for it may be one of the last century.

    Args:
        texts: the cells, a pyarrow array.
        times: the dates as strptime reads them, from 1969 to 2068.
        name: their column.
        path: its file.
        key: the spec key that names the file.
        option: the spec key that says what two digits stand for; empty if there is none.

    Raises:
        DataError: if one is.
    """
    from pyarrow import array, compute

    years, today = compute.year(times), date.today().year
    late = compute.fill_null(compute.greater(years, today), False).to_numpy(zero_copy_only=False)
    if not late.any():
        return
    row = int(late.argmax())
    year = years[row].as_py()
    earliest = int(compute.min(years.filter(array(late))).as_py()) - 100
    choice = f"set {option}: {earliest} if it is {year - 100}, or {option}: 1969 if it is {year}"
    raise DataError(
        f'{key}: {int(late.sum()):,} dates of column "{name}" of {path} have two digits for the year and can be of two '
        f"centuries: {row_lines.place(path, row + 1)} has {column_values.shown(texts, row)}, which is {year - 100} or {year}",
        f"years of four digits{f', or {option}, the first of the hundred years that they stand for' if option else ''}",
        choice if option else "write the years with four digits",
    )


def shift(times: Any, first_year: int) -> tuple[Any, column_values.Mask]:
    """The dates in the hundred years that begin with `first_year`, and a mask of those that are none there: 1900 had no
    29 February.
    """
    from pyarrow import array, compute

    valid = times.is_valid().to_numpy(zero_copy_only=False)
    years = compute.fill_null(compute.year(times), first_year).to_numpy(zero_copy_only=False)
    months = 12 * (first_year + (years - first_year) % 100 - years)
    filled = compute.fill_null(times.cast("timestamp[us]"), 0).to_numpy(zero_copy_only=False)
    begins = filled.astype("datetime64[M]")
    moved = (begins + months.astype("timedelta64[M]")).astype("datetime64[us]") + (filled - begins)
    wrong = valid & (moved.astype("datetime64[M]") != begins + months.astype("timedelta64[M]"))
    shifted = array(moved, mask=~valid | wrong).cast(times.type)
    return shifted, np.asarray(wrong, np.bool_)
