"""Parses the time and series columns of a long table, and sorts its rows by them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from drivetrain.data.formats import column_values, times
from drivetrain.data.source import Source
from drivetrain.data.stateless_random import Ids
from drivetrain.errors import DataError

if TYPE_CHECKING:
    import pyarrow


@dataclass(frozen=True)
class SeriesOrder:
    """Rows sorted by series and time."""

    times: npt.NDArray[Any]
    """Shape (rows,): int64 ticks for dates, else the numbers of the file."""
    per_second: float
    """Ticks per second for dates, else 1."""
    series: npt.NDArray[np.int64]
    """Series of each row, from 0."""
    rows: Ids
    """Index of each row in the file, from 0."""
    form: str | None = None
    """Form of the times in the file, as in `times.Times`."""

    def __len__(self) -> int:
        return len(self.times)

    def keep_rows(self, keep: column_values.Mask) -> SeriesOrder:
        """Return the order of the rows for which the mask is True."""
        return replace(self, times=self.times[keep], series=self.series[keep], rows=self.rows[keep])

    def find_stretch_starts(self, max_gap: float | None) -> Ids:
        """Find the first row of each row's stretch: rows of one series without a time step above `max_gap`."""
        return np.maximum.accumulate(np.where(self.find_breaks(max_gap), np.arange(len(self)), 0)).astype(np.int64)

    def find_last_rows(self, share: float) -> column_values.Mask:
        """Return a mask of the last rows in time: a share of the rows."""
        last_time = np.sort(self.times)[min(len(self) - 1, int(len(self) * (1 - share)))]
        return np.asarray(self.times >= last_time)

    def find_breaks(self, max_gap: float | None) -> column_values.Mask:
        """Return a mask of rows that begin a series or follow a time step of more than `max_gap` seconds or units."""
        is_break = np.append(True, self.series[1:] != self.series[:-1])
        if max_gap is not None:
            is_break[1:] |= np.diff(self.times) > max_gap * self.per_second
        return is_break


def read_order(
    table: pyarrow.Table, source: Source, time: str, group: str | None, form: str | None = None
) -> tuple[SeriesOrder, list[str]]:
    """Sort the rows that have a time and, with a column `group`, a series; returns their order, and notes.

    `form` is the form of the times, as in `times.read`; None to recognize it.

    Raises:
        DataError: if the time column holds no times, or a time occurs twice in a series.
    """
    ticks, has_time, per_second, parsed_times = _read_times(table[time], time, source, form)
    series, has_series = (
        _number_series(table[group], group, source) if group else (np.zeros(len(table), np.int64), has_time)
    )
    missing = [(time, ~has_time), *([(group, ~has_series)] if group else [])]
    unusable = [
        source.describe_bad_row(
            row,
            f"{time} is {column_values.format_cell(table[time], row)}, no time"
            if name == time and parsed_times.is_wrong[row]
            else f"{name} is empty",
        )
        for name, is_missing in missing
        for row in np.flatnonzero(is_missing).tolist()
    ]
    notes = source.check_bad(unusable, len(table))
    rows = np.flatnonzero(has_time & has_series).astype(np.int64)
    if not len(rows):
        raise DataError(f"no row of {source.path} has a time", times.POSSIBLE, "fix the file", key=source.key)
    if parsed_times.form and parsed_times.form != form:
        notes.append(f"{source.path.name}: {time} is read in the form {parsed_times.form}")
    order = rows[np.lexsort((ticks[rows], series[rows]))]
    if (np.diff(rows) < 0).any() or (order != rows).any():
        notes.append(f"{source.path.name}: rows were sorted by {f'{group} and ' if group else ''}{time}")
    series_order = SeriesOrder(ticks[order], per_second, series[order], order, parsed_times.form)
    _check_duplicates(series_order, time, group, source)
    return series_order, notes


def _read_times(
    column: pyarrow.ChunkedArray, name: str, source: Source, form: str | None
) -> tuple[npt.NDArray[np.generic], column_values.Mask, float, times.Times]:
    """Read times: ticks or numbers, a mask of rows that have a time, ticks per second, and the parsed times."""
    from pyarrow import compute, int64, timestamp, types

    is_number = column_values.kind(column) == "number" and not types.is_boolean(column.type)
    if is_number and form is None and times.recognize(column, "time") is None:
        values, _ = column_values.numbers(column)
        has_time = np.isfinite(values)
        parsed_times = times.Times(None, np.zeros(len(column), np.bool_))
        if types.is_integer(column.type):
            return (
                compute.fill_null(column, 0).to_numpy(zero_copy_only=False).astype(np.int64),
                has_time,
                1.0,
                parsed_times,
            )
        return np.nan_to_num(values), has_time, 1.0, parsed_times
    parsed_times = times.read(column, name, source, form, later=source.key != "data.train")
    unit = parsed_times.values.type.unit if parsed_times.values.type.unit == "ns" else "us"
    ticks = compute.fill_null(compute.cast(compute.cast(parsed_times.values, timestamp(unit)), int64()), 0)
    has_time = compute.is_valid(parsed_times.values).to_numpy(zero_copy_only=False)
    return ticks.to_numpy(zero_copy_only=False), has_time, 1e9 if unit == "ns" else 1e6, parsed_times


def _number_series(
    column: pyarrow.ChunkedArray, name: str, source: Source
) -> tuple[npt.NDArray[np.int64], column_values.Mask]:
    """Number the series; return the index of each row's series, and a mask of the rows that have one."""
    column_values.check_kind(column, name, source.key, str(source.path), dates=True)
    numbers = column_values.value_numbers(column_values.texts(column))
    return np.maximum(numbers, 0), numbers >= 0


def _check_duplicates(series_order: SeriesOrder, time: str, group: str | None, source: Source) -> None:
    is_duplicate = (series_order.times[1:] == series_order.times[:-1]) & (
        series_order.series[1:] == series_order.series[:-1]
    )
    if is_duplicate.any():
        first = int(is_duplicate.argmax())
        first_row, second_row = (
            source.name_row(row) for row in sorted((int(series_order.rows[first]), int(series_order.rows[first + 1])))
        )
        within = f"in a series of {group}" if group else "in one series"
        action = (
            "remove the duplicates"
            if group
            else "set data.group to the column that identifies the series, or remove the duplicates"
        )
        raise DataError(
            f"{source.path} has {int(is_duplicate.sum()):,} duplicate times {within}: {first_row} and {second_row} have the same {time}",
            "every time only once per series",
            f"{action}; an hour that the clocks repeat in autumn needs times in UTC, or with their offset",
            key=source.key,
        )
