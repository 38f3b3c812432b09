"""Drafts a spec for a long table of readings over time, to be cut into windows."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from drivetrain.data.formats import column_values, times
from drivetrain.data.source import Source
from drivetrain.data.survey import settings, table_sample
from drivetrain.data.survey.array_draft import network
from drivetrain.data.survey.settings import KEY, SurveyRequest
from drivetrain.data.survey.table_sample import DATE, ColumnProfile, TableSample, TargetGuess
from drivetrain.errors import DataError, SpecError
from drivetrain.job import FORECASTING
from drivetrain.job.draft import Draft, Entry, quote, quote_all
from drivetrain.tasks.series import sampling, timestamps, windows
from drivetrain.tasks.series.timestamps import SeriesOrder

CLASSIFICATION, REGRESSION = "series-classification", "series-regression"
LEAST_ROWS = 40
"""Smallest number of rows of a time series; fewer are taken for readings over time only on request."""
WINDOWS = (64, 32, 16, 8, 4)
"""Possible window lengths in rows; the first that fits well into the series is used."""
MIN_WINDOWS_PER_SPLIT = 4
"""Smallest number of windows that must fit into the longest contiguous stretch of each split."""
MAX_WINDOWS = 20_000
"""Approximate largest number of windows in a first training."""
VALIDATION_SHARE = 0.2
"""Share of the rows, from the end of the time, for validation."""
STEADY_SHARE = 0.5
"""Smallest persistence of labels from row to row: 0 is by chance, 1 always."""


@dataclass(frozen=True)
class TimedRows:
    """A table sorted by time."""

    time: str
    """Column of the times."""
    group: str | None
    """Column that identifies the series; None for a single series."""
    order: SeriesOrder
    date_format: str | None = None
    """Format of times that are text, as in strptime."""

    @property
    def is_regular(self) -> bool:
        """Whether most time steps are equal, as in training."""
        step: Any = sampling.measure(self.order, LEAST_ROWS).get(sampling.KEY)
        return step is not None and bool(step["is_even"])

    def are_steady(self, labels: npt.NDArray[np.int64]) -> bool:
        """Return whether labels persist from row to row more often than by chance."""
        sorted_labels = labels[self.order.rows]
        follows_row = ~self.order.find_breaks(None)[1:]
        persistence = float((sorted_labels[1:] == sorted_labels[:-1])[follows_row].mean()) if follows_row.any() else 0.0
        chance = float(((np.bincount(sorted_labels + 1) / len(sorted_labels)) ** 2).sum())
        return persistence >= chance + STEADY_SHARE * (1 - chance)

    def longest_stretch(self, share: float) -> int:
        """Count the rows of the longest unbroken stretch of training and of the last `share`; return the smaller."""
        is_validation = self.order.find_last_rows(share)
        breaks = self.order.find_breaks(None)
        breaks[1:] |= is_validation[1:] != is_validation[:-1]
        starts, lengths = windows.measure_stretches(breaks)
        return min(int(lengths[is_validation[starts] == side].max(initial=0)) for side in (False, True))


def draft(request: SurveyRequest, sample: TableSample) -> Draft | None:
    """Draft a spec for windows of a table; None if it contains no readings over time.

    Raises:
        DataError: if --task names a series task, but the table contains no readings over time.
    """
    is_requested = request.task in (CLASSIFICATION, REGRESSION)
    if request.texts or (not is_requested and (request.task or len(sample.table) < LEAST_ROWS)):
        return None
    timed = find_timed_rows(request, sample)
    guess = _guess_target(request, sample, timed, is_requested) if timed else None
    features = _list_features(sample, timed, guess) if timed and guess else []
    longest = timed.longest_stretch(VALIDATION_SHARE) if timed and features else 0
    fitting = [rows for rows in WINDOWS if rows * MIN_WINDOWS_PER_SPLIT <= longest]
    window = fitting[0] if fitting else WINDOWS[-1] if WINDOWS[-1] <= longest else 0
    if timed and guess and window:
        return _draft(request, sample, timed, guess, features, window)
    if is_requested:
        order_text = (
            f"in the order of {timed.time}" if timed else "without a column of times that come once in a series"
        )
        raise DataError(
            f"{KEY}: {sample.path} is no table of readings over time: {sample.size}, {order_text}",
            "a column of times, columns of numbers, one to predict, and some rows of each series after the other",
            f"name the column to predict with --target, or use --task tabular-classification; {FORECASTING}"
            if timed and guess and not features
            else "name the column to predict with --target, or use --task tabular-classification",
        )
    return None


def _draft(
    request: SurveyRequest, sample: TableSample, timed: TimedRows, guess: TargetGuess, features: list[str], window: int
) -> Draft:
    target = sample.columns[guess.names[0]]
    task = request.task or (CLASSIFICATION if _has_classes(target) else REGRESSION)
    series = int(timed.order.series.max()) + 1
    description = "label that rarely changes from row to row" if task == CLASSIFICATION else "number at each time"
    draft = Draft(task, f"{timed.time} is the time, {target.name} a {description}")
    draft.found = [sample.size, f"{series:,} series by {timed.group}" if timed.group else "one series"]
    readings = [c for c in sample.columns.values() if c.name not in (timed.time, timed.group)]
    draft.choices = guess.list_choices(readings)
    if request.task is None:
        alternative = f"to treat each row as a sample: --task tabular-{task[7:]}"
        draft.choices.append(f"the rows are read as a time series; {alternative}")
    if task == CLASSIFICATION:
        draft.found.append(f"{target.name} has {settings.format_counts(target.counts)}")
    stride = max(1, window // 8, min(window, sample.rows // MAX_WINDOWS))
    count = sample.rows // stride
    used_columns = [timed.time, *([timed.group] if timed.group else []), *features]
    date_format = Entry("date_format", f'"{timed.date_format}"', "day, month and year as they are in the file")
    draft.data = [
        request.path_entry("train", sample.path, sample.size),
        Entry("time", quote(timed.time), f"{'equal' if timed.is_regular else 'unequal'} time steps"),
        *([date_format] if timed.date_format else []),
        *([Entry("group", quote(timed.group), f"{series:,} series; no window spans two")] if timed.group else []),
        Entry("features", quote_all(features), f"{len(features)} columns of numbers"),
        Entry("label", guess.value, guess.reason),
        Entry("window", str(window), "rows per window; its label is that of its last row"),
        Entry("stride", str(stride), f"a window starts every {stride} rows: about {count:,} windows"),
        Entry("validation", str(VALIDATION_SHARE), "the last fifth of the time; no window crosses the boundary"),
        *settings.bad_samples(max(sample.lost(used_columns), sample.lost(guess.names)), "have an empty cell"),
    ]
    draft.model = Entry(
        "model", network(window, count), "convolutions for short patterns, then an LSTM for their order"
    )
    draft.train = settings.training(count, 100_000, (5, 30), 256, "windows", "3e-3")
    return draft


def find_timed_rows(request: SurveyRequest, sample: TableSample) -> TimedRows | None:
    """Sort the table by its first column whose times occur once in each series; None if there is none."""
    for time, form in _find_times(sample):
        for group in _find_groups(request, sample, time):
            with contextlib.suppress(DataError):
                order, _ = timestamps.read_order(sample.table, Source(sample.path, KEY), time, group, form)
                return TimedRows(time, group, order, form)
    return None


def suggest(request: SurveyRequest, sample: TableSample) -> str | None:
    """Suggest windows for a table with dates that is drafted as rows; None if its times repeat."""
    timed = find_timed_rows(request, sample)
    if timed is None:
        return None
    return f"each row is a sample; to train on windows over {timed.time}: --task {REGRESSION} --target COLUMN"


def _find_times(sample: TableSample) -> Iterator[tuple[str, str | None]]:
    """Yield date columns and numeric columns named like a time, typical names first, with the form of text dates."""
    # If day and month are ambiguous, the user has to declare the form.
    columns = [c for c in sample.columns.values() if " or " not in c.form]
    ranks = {c.name: [*times.NAMES, c.name.strip().casefold()].index(c.name.strip().casefold()) for c in columns}
    for column in sorted(columns, key=lambda c: ranks[c.name]):
        if column.refused == DATE or (column.kind == "number" and ranks[column.name] < len(times.NAMES)):
            yield column.name, None if column.form in ("", times.ISO) else column.form


def _find_groups(request: SurveyRequest, sample: TableSample, time: str) -> Iterator[str | None]:
    """Yield columns that may identify the series: a typical name, None, then any column with repeated values."""
    columns = [c for c in sample.columns.values() if c.name != time and c.name not in request.targets]
    candidates = [c for c in columns if c.counts and c.different <= max(1, c.filled // 8) and c.filled == c.rows]
    typical_name = table_sample.find_by_name(candidates, table_sample.GROUP_NAMES)
    labels = [c.name for c in candidates if c.name.strip().casefold() in table_sample.CLASS_NAMES]
    if typical_name:
        yield typical_name
    yield None
    yield from (c.name for c in candidates if c.name != typical_name and c.name not in labels)


def _has_classes(column: ColumnProfile) -> bool:
    return column.trainable and (column.kind == "text" or column.classes)


def _guess_target(
    request: SurveyRequest, sample: TableSample, timed: TimedRows, is_requested: bool
) -> TargetGuess | None:
    """Guess the class or number to predict at each time; None if the table contains no readings over time."""
    columns = [c for c in sample.columns.values() if c.name not in (timed.time, timed.group)]
    guess = table_sample.find_named(request, sample)
    if request.task != REGRESSION and guess is None:
        guess = table_sample.guess_classes(columns)
    if guess and (request.task != REGRESSION and _has_classes(sample.columns[guess.names[0]])):
        if len(guess.names) > 1:
            raise SpecError(
                f"{KEY}: --target {' --target '.join(guess.names)}: {CLASSIFICATION} predicts one column",
                "one --target",
                "name one of them",
            )
        labels = column_values.value_numbers(column_values.texts(sample.table[guess.names[0]]))
        return guess if is_requested or timed.are_steady(labels) else None
    if request.task == CLASSIFICATION:
        return None
    guess = guess or table_sample.guess_number(columns)
    if guess is None or any(sample.columns[name].kind != "number" for name in guess.names):
        return None
    return guess if is_requested or timed.is_regular else None


def _list_features(sample: TableSample, timed: TimedRows, guess: TargetGuess) -> list[str]:
    """List the columns of numbers that vary, without time, group and target."""
    with_roles = {timed.time, timed.group, *guess.names}
    return [c.name for c in sample.columns.values() if c.name not in with_roles and table_sample.is_number(c)]
