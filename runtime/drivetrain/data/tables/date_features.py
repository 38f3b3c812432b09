"""Replaces columns of dates by numbers such as year, month and weekday, as the job says for each column."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import Any

import numpy as np

from drivetrain.data.formats import column_values, table_paths
from drivetrain.data.source import Source
from drivetrain.errors import DataError

_TWO_DIGIT_YEAR = re.compile(r"%[yDxcg]")
"""Directives of strptime for years of two digits. 40 is 1940 in dates of birth and 2040 in dates of expiry, but strptime
always reads 2040.
"""
DAY_MICROSECONDS = 86_400_000_000
POSIX_YEAR = 1969
"""First of the hundred years that two digits stand for by default: 69 is 1969, and 68 is 2068."""


def has_two_digit_years(form: str | None) -> bool:
    """Whether dates in this form, as in strptime, have years of two digits."""
    return form is not None and _TWO_DIGIT_YEAR.search(form.replace("%%", "")) is not None


def _check_not_future(texts: Any, times: Any, name: str, source: Source, option: str) -> None:
    """Check that no date with a year of two digits is later than this year, since it may be of the last century.

    `times` are the texts as strptime reads them, from 1969 to 2068; `option` is the spec key that says what two digits stand
    for, empty if there is none.

    Raises:
        DataError: if a date is later than this year.
    """
    from pyarrow import array, compute

    years, today = compute.year(times), date.today().year
    is_future = compute.fill_null(compute.greater(years, today), False).to_numpy(zero_copy_only=False)
    if not is_future.any():
        return
    row = int(is_future.argmax())
    year = years[row].as_py()
    earliest = int(compute.min(years.filter(array(is_future))).as_py()) - 100
    choice = f"set {option}: {earliest} if it is {year - 100}, or {option}: 1969 if it is {year}"
    raise DataError(
        f'{source.key}: {int(is_future.sum()):,} dates of column "{name}" of {source.path} have two digits for the year and can be of two '
        f"centuries: {source.name_row(row)} has {column_values.format_cell(texts, row)}, which is {year - 100} or {year}",
        f"years of four digits{f', or {option}, the first of the hundred years that they stand for' if option else ''}",
        choice if option else "write the years with four digits",
    )


def _shift_centuries(times: Any, first_year: int) -> tuple[Any, column_values.Mask]:
    """Move dates by centuries into the hundred years that begin with `first_year`.

    Returns:
        The dates, null where there is none, and a mask of those that do not exist there: 1900 had no 29 February.
    """
    from pyarrow import array, compute

    valid = times.is_valid().to_numpy(zero_copy_only=False)
    years = compute.fill_null(compute.year(times), first_year).to_numpy(zero_copy_only=False)
    month_offsets = 12 * (first_year + (years - first_year) % 100 - years)
    microseconds = compute.fill_null(times.cast("timestamp[us]"), 0).to_numpy(zero_copy_only=False)
    month_starts = microseconds.astype("datetime64[M]")
    shifted_times = (month_starts + month_offsets.astype("timedelta64[M]")).astype("datetime64[us]") + (
        microseconds - month_starts
    )
    is_wrong = valid & (shifted_times.astype("datetime64[M]") != month_starts + month_offsets.astype("timedelta64[M]"))
    shifted = array(shifted_times, mask=~valid | is_wrong).cast(times.type)
    return shifted, np.asarray(is_wrong, np.bool_)


@dataclass(frozen=True)
class DateFeatures:
    """The rule by which columns of dates are replaced by columns of numbers."""

    parts: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """The parts to extract from each column of dates, such as `month`, as the spec writes them."""
    form: str | None = None
    """Format of dates that are text, as in strptime; None if they are in ISO format or no text."""
    first_year: int | None = None
    """First of the hundred years that two digits stand for; None if the job does not say."""
    zones: dict[str, str] | None = field(default_factory=dict)
    """The time zone of the numbers, by column of dates; an empty text for times without a zone. It is set from the first
    file that is read, and later files are converted to it. None for a model that was stored without zones.
    """

    @property
    def names(self) -> list[str]:
        """Names of the columns of numbers, such as `since.month`."""
        return [f"{name}.{part}" for name, parts in self.parts.items() for part in parts]

    def list_source_columns(self, names: Sequence[str]) -> list[str]:
        """The columns of a file that are needed for these columns, some of which are made of dates."""
        from_dates = set(self.names)
        return [*(name for name in names if name not in from_dates), *(self.parts if from_dates & set(names) else ())]

    def expand(self, table: Any, source: Source) -> tuple[Any, dict[int, str]]:
        """Replace the columns of dates by columns of numbers.

        Returns:
            The table, with int64 columns, or double for `days`; and the reasons why rows have no date, by row.

        Raises:
            DataError: if a column holds no dates, or the file has one of the new columns already.
        """
        reasons: dict[int, str] = {}
        table_paths.check_date_columns(self.names, table.column_names, source.path, source.key)
        for name in self.parts:
            times, is_wrong = self.read_times(table[name], name, source)
            times = self._convert_zone(times, name, source)
            for row in np.flatnonzero(is_wrong).tolist():
                reason = f"{name} is {column_values.format_cell(table[name], row)}, no date"
                reasons[row] = f"{reasons[row]}; {reason}" if row in reasons else reason
            for part in self.parts[name]:
                table = table.append_column(f"{name}.{part}", _extract_part(times, part))
            table = table.drop_columns([name])
        return table, reasons

    def to_json(self) -> dict[str, object]:
        """Plain JSON values from which `from_json` rebuilds the rule; empty if there are no dates."""
        if not self.parts:
            return {}
        rule: dict[str, object] = {
            "dates": {name: list(parts) for name, parts in self.parts.items()},
            "date_format": self.form,
        }
        if self.zones is not None:
            rule["zones"] = self.zones
            if has_two_digit_years(self.form):
                rule["first_year"] = self.first_year or POSIX_YEAR
        return rule

    def notes(self) -> list[str]:
        """Notes on the columns whose times have a zone."""
        return [
            f"{name}: times with a zone, whose numbers are those in {zone}"
            for name, zone in (self.zones or {}).items()
            if zone
        ]

    def read_times(self, column: Any, name: str, source: Source) -> tuple[Any, column_values.Mask]:
        """Read a column as timestamps, null where a cell is empty or no date, and a mask of the cells that are no date.

        Raises:
            DataError: if most cells are no dates.
        """
        from pyarrow import array, compute, timestamp, types

        is_wrong = np.zeros(len(column), np.bool_)
        kind = column_values.kind(column)
        iso_times = column_values.read_times(column) if kind == "text" and self.form is None else None
        if iso_times:
            column, is_wrong = iso_times
        if types.is_date(column.type) or kind == "nothing":
            return compute.cast(column, timestamp("us")), is_wrong
        if types.is_timestamp(column.type):
            return compute.cast(column, timestamp("us", column.type.tz), safe=False), is_wrong
        if kind != "text" or self.form is None:
            row = int(np.argmax(column.is_valid().to_numpy(zero_copy_only=False)))
            row = column_values.find_first_no_time(column) if kind == "text" else row
            raise DataError(
                f'{source.key}: column "{name}" of {source.path} is {column.type}: {source.name_row(row)} has {column_values.format_cell(column, row)}',
                "dates as 2024-05-31 or 2024-05-31 08:30:00; or text and its form in data.date_format",
                'set data.date_format, such as "%d.%m.%Y" for 31.05.2024 or "%m/%d/%Y" for 05/31/2024',
            )
        texts = column_values.texts(column)
        times = compute.strptime(texts, self.form, "us", error_is_null=True)
        is_wrong = compute.and_(texts.is_valid(), compute.is_null(times)).to_numpy(zero_copy_only=False)
        is_wrong |= self._find_impossible(texts, times)
        if has_two_digit_years(self.form):
            if self.first_year is None:
                _check_not_future(texts, times, name, source, "data.first_year" if self.parts else "")
            times, is_shifted_wrong = _shift_centuries(times, self.first_year or POSIX_YEAR)
            is_wrong |= is_shifted_wrong
        if is_wrong.sum() > column_values.TIMES_SHARE * (len(texts) - texts.null_count):
            row = int(is_wrong.argmax())
            raise DataError(
                f'{source.key}: {int(is_wrong.sum()):,} cells of column "{name}" of {source.path} are no dates in the form {self.form}: '
                f"{source.name_row(row)} has {column_values.format_cell(column, row)}",
                "one form for all dates, in data.date_format",
                "correct the cells or data.date_format; %d is the day, %m the month, %Y the year, %H:%M:%S the time",
            )
        return compute.if_else(array(is_wrong), None, times), is_wrong

    def _convert_zone(self, times: Any, name: str, source: Source) -> Any:
        """Convert times to the zone of their column, which is set to that of the times if this is the first file.

        Raises:
            DataError: if they have a zone and the column has none, or the other way round; or if the zone is not known here.
        """
        from pyarrow import ArrowInvalid, compute, timestamp

        if self.zones is None or times.null_count == len(times):
            return times
        zone = times.type.tz or ""
        training_zone = self.zones.setdefault(name, zone)
        if bool(training_zone) != bool(zone):
            row = int(np.argmax(times.is_valid().to_numpy(zero_copy_only=False)))
            form, training_form = (
                (f"in {zone}", "without a zone") if zone else ("without a zone", f"in {training_zone}")
            )
            raise DataError(
                f'{source.key}: times of column "{name}" of {source.path} are {form}, and those of the training data {training_form}: '
                f"{source.name_row(row)} has `{times[row].as_py()}`",
                "times as in the training data, all with a zone or all without",
                "add the zone to the times, such as +00:00, or remove it after a conversion to the time of the training data",
            )
        try:
            times = compute.cast(times, timestamp("us", training_zone or None))
            compute.hour(times.slice(0, 1))  # raises for an unknown zone, which the cast does not
        except ArrowInvalid:
            raise DataError(
                f'{source.key}: column "{name}" of {source.path} is in the time zone {training_zone}, which this machine does not know',
                "a zone of its database, such as UTC or Europe/Madrid",
                "install tzdata, or write the times in UTC",
            ) from None
        return times

    def _find_impossible(self, texts: Any, times: Any) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """A mask of texts that pyarrow reads as another day, such as 31.02. as 02.03., or as a year before 1000."""
        from pyarrow import array, compute

        assert self.form is not None
        is_before_1000 = compute.fill_null(compute.less(compute.year(times), 1000), False)
        is_month_start = compute.fill_null(compute.less_equal(compute.day(times), 3), False)
        # A day beyond the end of a month becomes one of the first three of the next; only these texts are parsed again.
        impossible = []
        for text in compute.unique(texts.filter(is_month_start)).to_pylist():
            try:
                datetime.strptime(text, self.form)
            except ValueError:
                impossible.append(text)
        is_impossible = compute.or_(is_before_1000, compute.is_in(texts, array(impossible, texts.type)))
        return np.asarray(is_impossible.to_numpy(zero_copy_only=False), np.bool_)


def from_json(stored: Mapping[str, Any]) -> DateFeatures:
    """Rebuild the rule from `DateFeatures.to_json`."""
    zones = stored.get("zones")
    return DateFeatures(
        stored.get("dates", {}),
        stored.get("date_format"),
        stored.get("first_year", POSIX_YEAR),
        None if zones is None else dict(zones),
    )


def _extract_part(times: Any, part: str) -> Any:
    """A part of each time as a pyarrow array; `days` are the days since 1970, with a fraction."""
    from pyarrow import compute, float64, int64

    if part == "days":
        return compute.divide(
            compute.cast(compute.cast(times, int64()), float64(), safe=False), float(DAY_MICROSECONDS)
        )
    return getattr(compute, "day_of_week" if part == "weekday" else part)(times)
