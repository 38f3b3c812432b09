"""Replaces columns of dates with numbers such as year, month and weekday, as the job says for each column."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from drivetrain.data.formats import column_values, table_paths, times
from drivetrain.data.formats.times import Times
from drivetrain.data.source import Source
from drivetrain.errors import DataError

DAY_MICROSECONDS = 86_400_000_000
CLOCK_PARTS = ("hour", "minute", "days")
"""Numbers that can be made from times of a day without a date."""


@dataclass(frozen=True)
class DateFeatures:
    """Rule that replaces columns of dates with columns of numbers."""

    parts: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Parts to extract from each column of dates, such as `month`, as the spec writes them."""
    form: str | None = None
    """Form of the dates that the job declares, as in `times.read`; None to detect it."""
    forms: dict[str, str] = field(default_factory=dict)
    """Form of each column of dates in the first file; columns in ISO format are not listed."""
    zones: dict[str, str] = field(default_factory=dict)
    """Time zone of the numbers, by column of dates; empty for times without a zone. The first file sets the zone, and
    later files are converted to it.
    """

    @property
    def names(self) -> list[str]:
        """Names of the columns of numbers, such as `since.month`."""
        return [f"{name}.{part}" for name, parts in self.parts.items() for part in parts]

    def list_source_columns(self, names: Sequence[str]) -> list[str]:
        """List the columns of a file that these columns need. Some of these columns are made from dates."""
        from_dates = set(self.names)
        return [*(name for name in names if name not in from_dates), *(self.parts if from_dates & set(names) else ())]

    def expand(self, table: Any, source: Source) -> tuple[Any, dict[int, str]]:
        """Replace the columns of dates with columns of numbers.

        Returns:
            The table, with int64 columns, or double for `days`; and the reasons why rows have no date, by row.

        Raises:
            DataError: if a column holds no dates, or the file already has one of the new columns.
        """
        reasons: dict[int, str] = {}
        table_paths.check_date_columns(self.names, table.column_names, source.path, source.key)
        for name in self.parts:
            form = self.forms.get(name, self.form)
            parsed_times = times.read(table[name], name, source, form, later=name in self.zones)
            self._check_parts(parsed_times, table[name], name, source)
            values = self._convert_zone(parsed_times.values, name, source)
            for row in np.flatnonzero(parsed_times.is_wrong).tolist():
                reason = f"{name} is {column_values.format_cell(table[name], row)}, no date"
                reasons[row] = f"{reasons[row]}; {reason}" if row in reasons else reason
            for part in self.parts[name]:
                table = table.append_column(f"{name}.{part}", _extract_part(values, part))
            table = table.drop_columns([name])
        return table, reasons

    def to_json(self) -> dict[str, object]:
        """Return the rule as plain JSON values for `from_json`; empty if there are no dates."""
        if not self.parts:
            return {}
        return {
            "dates": {name: list(parts) for name, parts in self.parts.items()},
            "date_format": self.form,
            "zones": self.zones,
            **({"forms": self.forms} if self.forms else {}),
        }

    def notes(self) -> list[str]:
        """Return notes on the forms that were detected, and on the columns whose times have a zone."""
        forms = [f"{name}: times in the form {form}" for name, form in self.forms.items() if form != self.form]
        return forms + [
            f"{name}: times with a zone, whose numbers are those in {zone}" for name, zone in self.zones.items() if zone
        ]

    def _check_parts(self, parsed_times: Times, column: Any, name: str, source: Source) -> None:
        """Check that the times have the parts that the job asks for, and note the form of the first file.

        Raises:
            DataError: if the job asks for parts of a date and the times have no date.
        """
        missing = [part for part in self.parts[name] if part not in CLOCK_PARTS]
        if missing and times.has_clock_alone(parsed_times.form):
            row = int(np.argmax(column.is_valid().to_numpy(zero_copy_only=False)))
            raise DataError(
                f'column "{name}" of {source.path} has times without a date, and no {missing[0]}: '
                f"{source.name_row(row)} has {column_values.format_cell(column, row)}",
                "hour and minute, or days, which is the share of the day",
                f"data.dates: {{{name}: [hour, minute]}}",
                key=source.key,
            )
        if parsed_times.form and name not in self.zones:
            self.forms[name] = parsed_times.form

    def _convert_zone(self, values: Any, name: str, source: Source) -> Any:
        """Convert times to the zone of their column. The times of the first file set this zone.

        Raises:
            DataError: if only the times or only the column has a zone, or if this machine does not know the zone.
        """
        from pyarrow import ArrowInvalid, compute, timestamp

        if values.null_count == len(values):
            return values
        zone = values.type.tz or ""
        training_zone = self.zones.setdefault(name, zone)
        if bool(training_zone) != bool(zone):
            row = int(np.argmax(values.is_valid().to_numpy(zero_copy_only=False)))
            form, training_form = (
                (f"in {zone}", "without a zone") if zone else ("without a zone", f"in {training_zone}")
            )
            raise DataError(
                f'times of column "{name}" of {source.path} are {form}, and those of the training data {training_form}: '
                f"{source.name_row(row)} has `{values[row].as_py()}`",
                "times as in the training data, all with a zone or all without",
                "add the zone to the times, such as +00:00, or remove it after a conversion to the time of the training data",
                key=source.key,
            )
        try:
            values = compute.cast(values, timestamp("us", training_zone or None), safe=False)
            compute.hour(values.slice(0, 1))  # raises for an unknown zone, which the cast does not
        except ArrowInvalid:
            raise DataError(
                f'column "{name}" of {source.path} is in the time zone {training_zone}, which this machine does not know',
                "a zone of its database, such as UTC or Europe/Madrid",
                "install tzdata, or write the times in UTC",
                key=source.key,
            ) from None
        return values


def from_json(stored: Mapping[str, Any]) -> DateFeatures:
    """Rebuild the rule from `DateFeatures.to_json`."""
    if "dates" not in stored:
        return DateFeatures()
    return DateFeatures(
        stored["dates"], stored.get("date_format"), dict(stored.get("forms", {})), dict(stored.get("zones", {}))
    )


def _extract_part(values: Any, part: str) -> Any:
    """Extract a part of each time as a pyarrow array; `days` are the days since 1970, with a fraction."""
    from pyarrow import compute, float64, int64

    if part == "days":
        return compute.divide(
            compute.cast(compute.cast(values, int64()), float64(), safe=False), float(DAY_MICROSECONDS)
        )
    return getattr(compute, "day_of_week" if part == "weekday" else part)(values)
