"""Measures the time step between the rows of series, and compares the step of new series with it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from drivetrain.data.source import Source
from drivetrain.errors import DataError
from drivetrain.tasks.series.timestamps import SeriesOrder

KEY = "sampling"
"""Key of the stored preprocessing."""
EVEN_SHARE, EVEN_TOLERANCE = 0.9, 0.1
"""Share of the steps that must be close to the median for even rows, and the largest relative difference."""
MAX_RATIO, MAX_UNEVEN_RATIO = 1.25, 2.0
"""Largest ratio of median steps of one sampling rate: for even rows, and for uneven rows."""


@dataclass(frozen=True)
class Sampling:
    """Time steps between rows within the series of a file."""

    step: float
    """Median step: in seconds for dates, else in units of the time column."""
    is_even: bool
    are_dates: bool

    def describe(self) -> str:
        """Return the step with its unit."""
        step = np.format_float_positional(self.step, 4, fractional=False, trim="-")
        return f"{step} s" if self.are_dates else f"{step} of the time column"


def measure(order: SeriesOrder, window: int) -> dict[str, object]:
    """Measure all steps within series; empty if no series has two rows. Returns plain JSON values for `compare`."""
    steps = np.diff(order.times)[order.series[1:] == order.series[:-1]] / order.per_second
    if not len(steps):
        return {}
    sampling = _summarize(steps, order)
    # If a training series has another step, the network has seen several steps.
    if any(_is_other(each, sampling) for _, each in _list_series(order, window)):
        sampling = replace(sampling, is_even=False)
    return {KEY: asdict(sampling)}


def _list_series(order: SeriesOrder, window: int) -> Iterator[tuple[int, Sampling]]:
    """Yield the first row and the sampling of each series that is long enough for a window."""
    starts = np.flatnonzero(np.append(True, order.series[1:] != order.series[:-1]))
    ends = np.append(starts[1:], len(order))
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        if end - start >= max(2, window):
            yield start, _summarize(np.diff(order.times[start:end]) / order.per_second, order)


def compare(order: SeriesOrder, source: Source, time: str, window: int, preprocessing: Mapping[str, Any]) -> list[str]:
    """Compare the step of each new series that is long enough for a window with the training step; returns notes.

    Raises:
        DataError: if a series has another step, and its rows and the training rows are even.
    """
    if KEY not in preprocessing:
        return []
    trained = Sampling(**preprocessing[KEY])
    other = [(start, sampling) for start, sampling in _list_series(order, window) if _is_other(sampling, trained)]
    if not other:
        return []
    start, sampling = other[0]
    which = f"{len(other):,} of {len(np.unique(order.series)):,} series, first that of {source.name_row(int(order.rows[start]))}"
    difference = f"{source.path}: `{time}` steps by {sampling.describe()} in {which}, and stepped by {trained.describe()} in training"
    if not trained.is_even or not sampling.is_even:
        return [f"{difference}: what is predicted is a guess if the network has learned speeds or frequencies"]
    rule = f".resample('{np.format_float_positional(trained.step, trim='-')}s')"
    action = f"numbers by {rule}.mean(numeric_only=True).interpolate(), texts by {rule}.first().ffill()"
    raise DataError(
        f"{difference}: a window would span another time",
        "series with the step of training, up to a quarter more or less",
        f"resample them{f', in pandas for each series: {action}' if trained.are_dates else ''}; or train on series with this step",
        key=source.key,
    )


def _summarize(steps: Any, order: SeriesOrder) -> Sampling:
    step = float(np.median(steps))
    is_even = float((np.abs(steps - step) <= EVEN_TOLERANCE * step).mean()) >= EVEN_SHARE
    return Sampling(step, is_even, order.per_second != 1.0)


def _is_other(new: Sampling, trained: Sampling) -> bool:
    """Return whether a step belongs to another sampling rate."""
    if new.step <= 0 or trained.step <= 0:
        return False
    ratio = new.step / trained.step
    if not (new.are_dates and trained.are_dates):
        # Numbers may count milliseconds, microseconds or nanoseconds.
        ratio /= 1000.0 ** round(math.log(ratio, 1000))
    return max(ratio, 1 / ratio) > (MAX_RATIO if trained.is_even else MAX_UNEVEN_RATIO)
