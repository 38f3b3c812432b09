"""Finds the windows of a long table or of arrays, and which of them can be used."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from drivetrain.data import bad_samples, target_columns
from drivetrain.data.bad_samples import BadSample
from drivetrain.data.dataset import Head
from drivetrain.data.formats import column_values, row_lines
from drivetrain.data.groups import Groups
from drivetrain.data.series import npz_windows, windows
from drivetrain.data.series.timeline import Timeline
from drivetrain.data.series.windows import SeriesSplit
from drivetrain.data.stateless_random import Ids
from drivetrain.data.target_columns import TargetColumn
from drivetrain.errors import DataError


@dataclass(frozen=True)
class WindowSplit:
    """Windows over the rows of one file."""

    path: Path
    key: str
    """The spec key that names the file, for messages."""
    values: npt.NDArray[Any]
    """Shape (rows, channels), unscaled."""
    fitted: column_values.Mask
    """Rows that mean and standard deviation are computed from."""
    starts: Ids
    """The first row of each window."""
    length: int
    """Rows per window."""
    goal: TargetColumn | None
    marks: Ids
    """Index into `goal` of each window's target."""
    numbers: Ids
    """The number of each window in messages."""
    form: str
    notes: list[str]
    groups: Groups | None = None
    """The number of each window's group: all of one are on one side of the split."""
    turned: bool = False
    """Whether the arrays of the file are (N, channels, T)."""

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and channels of a window."""
        return self.length, self.values.shape[1]

    @property
    def fitting(self) -> npt.NDArray[np.generic]:
        """The rows that mean and standard deviation are computed from."""
        return self.values if self.fitted.all() else self.values[self.fitted]

    def windows(self) -> npt.NDArray[Any]:
        """The windows of arrays, shape (N, T, channels)."""
        return self.values.reshape(-1, *self.shape)[self.starts // self.length]

    def take_rows(self, window_numbers: Ids) -> WindowSplit:
        """Keep some of the windows; for arrays, statistics are then also computed from their rows only."""
        fitted = np.zeros(len(self.values), np.bool_)
        fitted[(self.starts[window_numbers][:, None] + np.arange(self.length)).ravel()] = True
        groups = None if self.groups is None else self.groups[window_numbers]
        return replace(
            self,
            starts=self.starts[window_numbers],
            marks=self.marks[window_numbers],
            numbers=self.numbers[window_numbers],
            fitted=fitted,
            groups=groups,
        )

    def split(self, values: Tensor, head: Head | None) -> SeriesSplit:
        """The windows with scaled values, and with targets if a head is given."""
        targets = {"": target_columns.build_tensor(self.goal, self.marks, head, self.key)} if head and self.goal else {}
        return SeriesSplit(
            values,
            self.starts,
            self.length,
            targets,
            self.numbers,
            (self.path.name,),
            self.form,
            np.zeros(len(self.starts), np.int64),
        )

    def check_shape(self, length: int, channels: int) -> None:
        """Check that windows have the shape of training.

        Raises:
            DataError: if they do not.
        """
        if (self.length, self.values.shape[1]) != (length, channels):
            raise DataError(
                f"{self.key}: windows of {self.path} are {self.length} rows of {self.values.shape[1]} channels",
                f"as in training: {length} rows of {channels} channels",
                "slice or convert them",
            )


def whole(line: Timeline, budget: float | None) -> WindowSplit:
    """All windows of a long table.

    Args:
        line: its rows.
        budget: largest share of windows without a label; None for any share.

    Raises:
        DataError: if there is no window, or too many have no label.
    """
    breaks = line.clock.breaks(line.layout.max_gap)
    cut = _usable(line, breaks, np.ones(len(line), np.bool_), budget)
    return replace(cut, notes=[*line.notes, *cut.notes])


def divide(line: Timeline, share: float, budget: float) -> tuple[WindowSplit, WindowSplit]:
    """Windows before a point in time, and windows from it on; no window spans it.

    Args:
        line: rows of a long table.
        share: share of the rows after that point.
        budget: largest share of windows without a label.

    Raises:
        DataError: if one side has no window, or too many windows have no label.
    """
    times = line.clock.times
    moment = np.sort(times)[min(len(times) - 1, int(len(times) * (1 - share)))]
    after = times >= moment
    breaks = line.clock.breaks(line.layout.max_gap)
    _check_length(line, breaks)
    breaks[1:] |= after[1:] != after[:-1]
    early, later = (
        _usable(line, breaks, part, budget, f"{name} part")
        for part, name in ((~after, "training"), (after, "validation"))
    )
    _check_late(line, early, later, share)
    return replace(early, notes=[*line.notes, *early.notes]), later


def _check_late(line: Timeline, early: WindowSplit, after: WindowSplit, share: float) -> None:
    """Refuse classes that come only in the last part of the time, so that nothing could learn them."""
    if line.goal is None or line.goal.texts is None:
        return
    first = target_columns.list_classes(line.goal, early.marks, line.key)
    last = Counter(line.goal.texts.take(after.marks).to_pylist())
    if only := [f'"{name}" ({last[name]:,} windows)' for name in sorted(set(last) - set(first))]:
        raise DataError(
            f"{line.key}: {', '.join(only)} come only in the last {share:.0%} of the time, which is for validation",
            "every class in the training part too",
            "set data.validation to another share, a file or `groups`, or leave these rows out",
        )


def by_group(line: Timeline, budget: float) -> WindowSplit:
    """All windows of a long table that has groups; none spans two of them.

    Raises:
        DataError: if there is no window, or too many have no label.
    """
    assert line.groups is not None
    breaks = line.clock.breaks(line.layout.max_gap)
    breaks[1:] |= line.groups[1:] != line.groups[:-1]
    cut = _usable(line, breaks, np.ones(len(line), np.bool_), budget)
    return replace(cut, notes=[*line.notes, *cut.notes], groups=line.groups[cut.starts])


def stack(
    path: Path,
    key: str,
    classes: bool,
    budget: float | None,
    *,
    labelled: bool,
    axes: str = "auto",
    groups: str | None = None,
) -> WindowSplit:
    """The windows of arrays.

    Args:
        path: the .npz file.
        key: the spec key that names it, for messages.
        classes: whether its targets are classes.
        budget: largest share of windows that cannot be used; None for any share.
        labelled: whether to read targets.
        axes: the order of the axes of `x`, in the words of the spec.
        groups: the array that says which windows stay on one side of the split.

    Raises:
        DataError: if it cannot be used.
    """
    stack = npz_windows.read(path, key, classes=classes, budget=budget, labelled=labelled, axes=axes, groups=groups)
    length, channels = stack.values.shape[1:]
    values = stack.values.reshape(-1, channels)
    cut = WindowSplit(
        path,
        key,
        values,
        np.ones(len(values), np.bool_),
        stack.rows * length,
        length,
        stack.goal,
        stack.rows,
        stack.rows,
        "{file}[{number}]",
        stack.notes,
        stack.groups,
        stack.turned,
    )
    return cut.take_rows(np.arange(len(stack.rows)))


def _usable(
    line: Timeline, breaks: column_values.Mask, part: column_values.Mask, budget: float | None, name: str = ""
) -> WindowSplit:
    """Windows in some of the rows, without those that have no label."""
    _check_length(line, breaks, part, name)
    length = line.layout.window
    starts = windows.cut(breaks, length, line.layout.stride)
    starts = starts[part[starts]]
    last = starts + length - 1
    rows, file = line.clock.rows, line.path.name
    reasons = line.goal.bad if line.goal else {}
    without = np.zeros(len(line), np.bool_)
    without[list(reasons)] = True
    unusable = [
        BadSample(f"{file}, window that ends in {row_lines.place(line.path, int(rows[row]) + 1)}", reasons[row])
        for row in last[without[last]].tolist()
    ]
    notes = bad_samples.check(unusable, len(starts), 1.0 if budget is None else budget, line.key)
    good = ~without[last]
    if not good.any():
        raise DataError(
            f"{line.key}: no window of {line.path} is usable; {unusable[0]}",
            "a label in the last row of each window",
            "add labels, or choose window and stride so that windows end in labelled rows",
        )
    return WindowSplit(
        line.path,
        line.key,
        line.values,
        part,
        starts[good],
        length,
        line.goal,
        last[good],
        rows[last[good]] + 1,
        "{file} rows to {number}",
        notes,
    )


def _check_length(
    line: Timeline, breaks: column_values.Mask, part: column_values.Mask | None = None, name: str = ""
) -> None:
    """Check that there is at least one window."""
    length = line.layout.window
    # Rows outside of the part break the sequence.
    longest = windows.longest(breaks if part is None else breaks | ~part) if part is None or part.any() else 0
    if longest < length:
        where = f"the {name} of {line.path} has at most" if name else f"{line.path} has at most"
        raise DataError(
            f"data.window: is {length}, and {where} {longest:,} consecutive rows",
            "a window no longer than the consecutive rows: of one series, without a gap above max_gap, on one side of the split",
            "a shorter window, longer series" + (", or another data.validation" if name else ""),
        )
