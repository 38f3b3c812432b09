"""Windows of one file before they are scaled, and how they are cut from a long table."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from drivetrain.data import target_columns
from drivetrain.data.bad_samples import BadSample
from drivetrain.data.dataset import Head
from drivetrain.data.formats import column_values
from drivetrain.data.groups import Groups
from drivetrain.data.series import windows
from drivetrain.data.series.timeline import Timeline
from drivetrain.data.series.windows import SeriesSplit
from drivetrain.data.source import Source
from drivetrain.data.stateless_random import Ids
from drivetrain.data.target_columns import TargetColumn
from drivetrain.errors import DataError


@dataclass(frozen=True)
class WindowSplit:
    """Windows over the rows of one file."""

    source: Source
    values: npt.NDArray[Any]
    """Shape (rows, channels), unscaled."""
    starts: Ids
    """The first row of each window."""
    length: int
    """Rows per window."""
    is_fitted: column_values.Mask
    """Mask of the rows from which mean and standard deviation are computed."""
    target: TargetColumn | None
    target_rows: Ids
    """Index of each window's target in `target`."""
    numbers: Ids
    """The number of each window in messages."""
    title_format: str
    """Format of a window's name, with {file} and {number}."""
    notes: list[str]
    groups: Groups | None = None
    """The number of each window's group, all of which is on one side of the split."""
    axes: str = "time-channels"
    """The order of the axes of arrays behind the first; channels-time for (N, channels, T)."""

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and channels of a window."""
        return self.length, self.values.shape[1]

    @property
    def fitting_rows(self) -> npt.NDArray[np.generic]:
        """The rows that mean and standard deviation are computed from."""
        return self.values if self.is_fitted.all() else self.values[self.is_fitted]

    def windows(self) -> npt.NDArray[Any]:
        """The windows of arrays, shape (N, T, channels)."""
        return self.values.reshape(-1, *self.shape)[self.starts // self.length]

    def take_rows(self, window_numbers: Ids) -> WindowSplit:
        """Keep some of the windows; for arrays, statistics are then also computed from their rows only."""
        is_fitted = np.zeros(len(self.values), np.bool_)
        is_fitted[(self.starts[window_numbers][:, None] + np.arange(self.length)).ravel()] = True
        groups = None if self.groups is None else self.groups[window_numbers]
        return replace(
            self,
            starts=self.starts[window_numbers],
            target_rows=self.target_rows[window_numbers],
            numbers=self.numbers[window_numbers],
            is_fitted=is_fitted,
            groups=groups,
        )

    def split(self, values: Tensor, head: Head | None) -> SeriesSplit:
        """The windows with scaled values, and with targets if a head is given."""
        targets = {}
        if head and self.target:
            targets[""] = target_columns.build_tensor(self.target, self.target_rows, head, self.source.key)
        file, names = np.zeros(len(self.starts), np.int64), (self.source.path.name,)
        return SeriesSplit(values, self.starts, self.length, targets, self.numbers, names, self.title_format, file)

    def check_shape(self, length: int, channels: int) -> None:
        """Check that windows have the shape of training; raises DataError if they do not."""
        if self.shape != (length, channels):
            raise DataError(
                f"{self.source.key}: windows of {self.source.path} are {self.length} rows of {self.shape[1]} channels",
                f"as in training: {length} rows of {channels} channels",
                "slice or convert them",
            )


def cut_all(timeline: Timeline) -> WindowSplit:
    """Cut all windows of a long table; none spans two groups, if it has groups.

    Raises:
        DataError: if there is no window, or too many have no label.
    """
    breaks, groups = timeline.order.find_breaks(timeline.layout.max_gap), timeline.groups
    if groups is not None:
        breaks[1:] |= groups[1:] != groups[:-1]
    split = _cut_usable(timeline, breaks, np.ones(len(timeline), np.bool_))
    window_groups = None if groups is None else groups[split.starts]
    return replace(split, notes=[*timeline.notes, *split.notes], groups=window_groups)


def cut_before_and_after(timeline: Timeline, share: float) -> tuple[WindowSplit, WindowSplit]:
    """Cut the windows before a point in time for training, and those from it on, a share of the rows, for validation.

    No window spans that point.

    Raises:
        DataError: if one side has no window, or too many windows have no label.
    """
    times = timeline.order.times
    split_time = np.sort(times)[min(len(times) - 1, int(len(times) * (1 - share)))]
    is_validation = times >= split_time
    breaks = timeline.order.find_breaks(timeline.layout.max_gap)
    _check_length(timeline, breaks, np.ones(len(timeline), np.bool_))
    breaks[1:] |= is_validation[1:] != is_validation[:-1]
    train, validation = (
        _cut_usable(timeline, breaks, rows, f"{name} part")
        for rows, name in ((~is_validation, "training"), (is_validation, "validation"))
    )
    _check_classes_before(timeline, train, validation, share)
    return replace(train, notes=[*timeline.notes, *train.notes]), validation


def _check_classes_before(timeline: Timeline, train: WindowSplit, validation: WindowSplit, share: float) -> None:
    """Refuse classes that occur only in the last part of the time, so that training would have no sample of them."""
    if timeline.target is None or timeline.target.texts is None:
        return
    train_classes = target_columns.list_classes(timeline.target, train.target_rows, timeline.source.key)
    validation_counts = Counter(timeline.target.texts.take(validation.target_rows).to_pylist())
    if without_training := [
        f'"{name}" ({validation_counts[name]:,} windows)'
        for name in sorted(set(validation_counts) - set(train_classes))
    ]:
        raise DataError(
            f"{timeline.source.key}: {', '.join(without_training)} come only in the last {share:.0%} of the time, which is for validation",
            "every class in the training part too",
            "set data.validation to another share, a file or `groups`, or leave these rows out",
        )


def _cut_usable(
    timeline: Timeline, breaks: column_values.Mask, is_included: column_values.Mask, name: str = ""
) -> WindowSplit:
    """Cut windows from the included rows, except those without a label in their last row."""
    _check_length(timeline, breaks, is_included, name)
    source, length = timeline.source, timeline.layout.window
    starts = windows.find_window_starts(breaks, length, timeline.layout.stride)
    starts = starts[is_included[starts]]
    last_rows, file_rows = starts + length - 1, timeline.order.rows
    reasons = timeline.target.bad if timeline.target else {}
    lacks_label = np.zeros(len(timeline), np.bool_)
    lacks_label[list(reasons)] = True
    unusable = [
        BadSample(f"{source.path.name}, window that ends in {source.name_row(int(file_rows[row]))}", reasons[row])
        for row in last_rows[lacks_label[last_rows]].tolist()
    ]
    notes = source.check_bad(unusable, len(starts))
    has_label = ~lacks_label[last_rows]
    if not has_label.any():
        raise DataError(
            f"{source.key}: no window of {source.path} is usable; {unusable[0]}",
            "a label in the last row of each window",
            "add labels, or choose window and stride so that windows end in labelled rows",
        )
    return WindowSplit(
        source,
        timeline.values,
        starts[has_label],
        length,
        is_included,
        timeline.target,
        target_rows=last_rows[has_label],
        numbers=file_rows[last_rows[has_label]] + 1,
        title_format="{file} rows to {number}",
        notes=notes,
    )


def _check_length(
    timeline: Timeline, breaks: column_values.Mask, is_included: column_values.Mask, name: str = ""
) -> None:
    """Check that consecutive rows are long enough for at least one window."""
    length = timeline.layout.window
    # Rows outside of the part break the sequence.
    longest = windows.measure_longest_stretch(breaks | ~is_included) if is_included.any() else 0
    if longest < length:
        where = f"the {name} of {timeline.source.path} has at most" if name else f"{timeline.source.path} has at most"
        raise DataError(
            f"data.window: is {length}, and {where} {longest:,} consecutive rows",
            "a window no longer than the consecutive rows: of one series, without a gap above max_gap, on one side of the split",
            "a shorter window, longer series" + (", or another data.validation" if name else ""),
        )
