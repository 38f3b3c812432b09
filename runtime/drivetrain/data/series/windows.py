"""Cuts windows, a fixed number of rows each, from the rows of one file, and provides them as samples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from drivetrain.data import copies, target_columns
from drivetrain.data.copies import Contents
from drivetrain.data.dataset import Head, Inputs, Targets
from drivetrain.data.formats import column_values
from drivetrain.data.notes import list_names
from drivetrain.data.partition import Groups
from drivetrain.data.scales import Scale, fit_scale
from drivetrain.data.series.timeline import Timeline
from drivetrain.data.source import BadSample, Source
from drivetrain.data.stateless_random import Ids
from drivetrain.data.target_columns import TargetColumn
from drivetrain.errors import DataError

if TYPE_CHECKING:
    from torch import Tensor

_COMPARED_WINDOWS = 4096
"""Number of windows gathered at a time to compute their digests."""


@dataclass
class SeriesSplit:
    """Windows over rows (R, C); window i starts at row starts[i]. Windows may overlap."""

    values: Tensor
    """Shape (R, C), float32, scaled; contiguous."""
    starts: Ids
    length: int
    """Rows per window."""
    targets: Targets
    numbers: Ids
    """Number of each window in messages: its last row in the file, or its index in the array."""
    files: tuple[str, ...]
    title_format: str
    """Format of a window's name, from file and number."""
    file: Ids
    """Index of each window's file."""

    def __len__(self) -> int:
        return len(self.starts)

    def gather(self, ids: Ids) -> Inputs:
        """Return one tensor (N, length, C) float32."""
        import torch

        count, channels = self.values.shape
        # Each row of this view is a window; overlapping windows share memory.
        windows = self.values.as_strided((count - self.length + 1, self.length * channels), (channels, 1))
        gathered = windows.index_select(0, torch.from_numpy(self.starts[ids]))
        return (gathered.view(len(ids), self.length, channels),)

    def contents(self) -> Contents:
        """Return a digest of each window."""
        parts = np.array_split(np.arange(len(self)), -(-len(self) // _COMPARED_WINDOWS) or 1)
        return np.concatenate([copies.digest_rows(self.gather(ids)[0].numpy()) for ids in parts])

    def title(self, index: int) -> str:
        """Return the file and number of one window."""
        return self.title_format.format(file=self.files[self.file[index]], number=self.numbers[index])


def scale_channels(values: npt.NDArray[np.generic], scales: Sequence[Scale]) -> Tensor:
    """Scale the values of each channel; shape (R, C), float32."""
    import torch

    result = np.empty(values.shape, np.float32)
    for channel, scale in enumerate(scales):
        result[:, channel] = scale.scale(values[:, channel].astype(np.float64))
    return torch.from_numpy(result)


def fit_scales(values: npt.NDArray[np.generic]) -> list[Scale]:
    """Fit the scale of each channel to training rows (R, C)."""
    return [fit_scale(column.astype(np.float64)) for column in values.T]


def measure_stretches(breaks: npt.NDArray[np.bool_]) -> tuple[Ids, Ids]:
    """Return the first row and the number of rows of each stretch of rows without a break."""
    starts = np.flatnonzero(breaks)
    return starts, np.diff(np.append(starts, len(breaks)))


def find_window_starts(breaks: npt.NDArray[np.bool_], length: int, stride: int, *, to_end: bool = False) -> Ids:
    """Find the first row of each window, `stride` rows apart from the start of each stretch; none spans a break.

    With `to_end`, each stretch also gets a window that ends in its last row.
    """
    stretch_starts, stretch_lengths = measure_stretches(breaks)
    counts = np.maximum(0, (stretch_lengths - length) // stride + 1)
    number_in_stretch = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    starts = np.repeat(stretch_starts, counts) + number_in_stretch * stride
    if to_end:
        starts = np.union1d(starts, (stretch_starts + stretch_lengths - length)[stretch_lengths >= length])
    return np.asarray(starts, np.int64)


def join_splits(parts: Sequence[SeriesSplit]) -> SeriesSplit:
    """Concatenate the windows of several files."""
    import torch

    offsets = np.cumsum([0, *(len(part.values) for part in parts)])
    return SeriesSplit(
        values=torch.cat([part.values for part in parts]),
        starts=np.concatenate([part.starts + offset for part, offset in zip(parts, offsets, strict=False)]),
        length=parts[0].length,
        targets={name: torch.cat([part.targets[name] for part in parts]) for name in parts[0].targets},
        numbers=np.concatenate([part.numbers for part in parts]),
        files=tuple(part.files[0] for part in parts),
        title_format=parts[0].title_format,
        file=np.repeat(np.arange(len(parts)), [len(part) for part in parts]),
    )


@dataclass(frozen=True)
class WindowSplit:
    """Windows over the rows of one file."""

    source: Source
    values: npt.NDArray[Any]
    """Shape (rows, channels), unscaled."""
    starts: Ids
    """First row of each window."""
    length: int
    """Rows per window."""
    is_fitted: column_values.Mask
    """Mask of the rows used to compute mean and standard deviation."""
    target: TargetColumn | None
    target_rows: Ids
    """Index of each window's target in `target`."""
    numbers: Ids
    """Number of each window in messages."""
    title_format: str
    """Format of a window's name, with {file} and {number}."""
    notes: list[str]
    file_rows: Ids | None = None
    """Index of each row of `values` in the file; None for arrays."""
    groups: Groups | None = None
    """Number of each window's group; a whole group is on one side of the split."""
    axes: str = "time-channels"
    """Order of the axes of arrays after the first axis; channels-time for (N, channels, T)."""

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and channels of a window."""
        return self.length, self.values.shape[1]

    @property
    def fitting_rows(self) -> npt.NDArray[np.generic]:
        """The rows used to compute mean and standard deviation."""
        return self.values if self.is_fitted.all() else self.values[self.is_fitted]

    def name_row(self, row: int) -> str:
        """Name a row of `values`: by its row in the file, or by its window in an array."""
        if self.file_rows is None:
            return f"x[{row // self.length}]"
        return self.source.name_row(int(self.file_rows[row]))

    def note_numbers(self, scales: Sequence[Scale], names: Sequence[str], *, is_new: bool) -> list[str]:
        """Return notes by channel on values that are codes and, in new rows, on values far from the training values."""
        lines = []
        for column, name, scale in zip(self.values.T, names, scales, strict=True):
            values = column.astype(np.float64)
            is_code = scale.find_codes(values)
            share = float(is_code.mean())
            if is_code.any() and self.file_rows is None:
                share = float(is_code.reshape(-1, self.length).any(axis=1).mean())
            needed = share if share > self.source.budget else 0.0
            lines += scale.note_distant(name, values, self.name_row) if is_new else []
            lines += scale.note_codes(name, values, self.name_row, is_new=is_new, bad_samples=needed)
        return lines

    def note_target_codes(self, head: Head, *, is_new: bool) -> list[str]:
        """Return notes on numbers to predict that are codes."""
        assert self.target is not None
        return target_columns.note_codes(
            self.target,
            self.target_rows,
            head,
            self.name_row if self.file_rows is not None else lambda window: f"y[{window}]",
            is_new=is_new,
            budget=self.source.budget,
        )

    def windows(self) -> npt.NDArray[Any]:
        """Return the windows of arrays, shape (N, T, channels)."""
        return self.values.reshape(-1, *self.shape)[self.starts // self.length]

    def take_rows(self, window_numbers: Ids) -> WindowSplit:
        """Keep some of the windows; the statistics are then also computed from their rows only."""
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

    def keep_scored(self, head: Head) -> tuple[WindowSplit, list[str]]:
        """Keep the windows without codes in the numbers to predict, and note the others."""
        assert self.target is not None
        rows, notes = target_columns.keep_scored(self.target, self.target_rows, head)
        return (self.take_rows(np.flatnonzero(np.isin(self.target_rows, rows))), notes) if notes else (self, [])

    def split(self, values: Tensor, head: Head | None) -> SeriesSplit:
        """Return the windows as a split with scaled values, and with targets if a head is given."""
        targets = {}
        if head and self.target:
            targets[""] = target_columns.build_tensor(self.target, self.target_rows, head, self.source.key)
        file, names = np.zeros(len(self.starts), np.int64), (self.source.path.name,)
        return SeriesSplit(values, self.starts, self.length, targets, self.numbers, names, self.title_format, file)

    def check_shape(self, length: int, channels: int) -> None:
        """Check that windows have the shape of training; raises DataError if they do not."""
        if self.shape != (length, channels):
            raise DataError(
                f"windows of {self.source.path} are {self.length} rows of {self.shape[1]} channels",
                f"as in training: {length} rows of {channels} channels",
                "slice or convert them",
                key=self.source.key,
            )


def cut_all(timeline: Timeline) -> WindowSplit:
    """Cut all windows of a long table; none spans two groups, if it has groups.

    Rows to predict, which have no labels, also get the windows that end in the last row of each stretch.

    Raises:
        DataError: if there is no window, or too many windows have no label.
    """
    breaks, groups = timeline.order.find_breaks(timeline.layout.max_gap), timeline.groups
    if groups is not None:
        breaks[1:] |= groups[1:] != groups[:-1]
    split = _cut_usable(timeline, breaks, np.ones(len(timeline), np.bool_))
    window_groups = None if groups is None else groups[split.starts]
    unpredicted = [] if timeline.source.labelled else _note_rows_without_window(timeline, breaks)
    return replace(split, notes=[*timeline.notes, *split.notes, *unpredicted], groups=window_groups)


def _note_rows_without_window(timeline: Timeline, breaks: column_values.Mask) -> list[str]:
    """Return notes on rows without a prediction, since no window ends in them."""
    source, length, stride = timeline.source, timeline.layout.window, timeline.layout.stride
    starts, lengths = measure_stretches(breaks)
    is_short = lengths < length
    step = "in every row" if stride == 1 else f"every {stride:,} rows and in the last row"
    notes = [
        f"{source.path.name}: windows end {step} of each series; its first {length - 1:,} rows, which have no window of "
        f"{length:,} rows, have no prediction"
    ]
    if is_short.any():
        rows = [
            f"{source.name_row(int(timeline.order.rows[start]))} and the {count - 1:,} after it"
            for start, count in zip(starts[is_short].tolist(), lengths[is_short].tolist(), strict=True)
        ]
        notes.append(
            f"{source.path.name}: {int(lengths[is_short].sum()):,} rows are in series, or between gaps, of fewer than {length:,} rows and "
            f"have no prediction: {list_names(rows, 5, '; ')}"
        )
    return notes if length > 1 else []


def cut_before_and_after(timeline: Timeline, share: float) -> tuple[WindowSplit, WindowSplit]:
    """Cut training windows before a point in time, and validation windows from it on: a share of the rows.

    No window spans that point.

    Raises:
        DataError: if one side has no window, or too many windows have no label.
    """
    is_validation = timeline.order.find_last_rows(share)
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
    """Refuse classes that occur only in the last part of the time and so have no training sample."""
    if timeline.target is None or timeline.target.indices is None:
        return
    train_classes = target_columns.list_classes(timeline.target, train.target_rows, timeline.source.key)
    validation_counts = Counter(timeline.target.list_names(validation.target_rows))
    if without_training := [
        f'"{name}" ({validation_counts[name]:,} windows)'
        for name in sorted(set(validation_counts) - set(train_classes))
    ]:
        raise DataError(
            f"{', '.join(without_training)} come only in the last {share:.0%} of the time, which is for validation",
            "every class in the training part too",
            "set data.validation to another share, a file or `groups`, or leave these rows out",
            key=timeline.source.key,
        )


def _cut_usable(
    timeline: Timeline, breaks: column_values.Mask, is_included: column_values.Mask, name: str = ""
) -> WindowSplit:
    """Cut windows from the included rows, except windows without a label in their last row."""
    _check_length(timeline, breaks, is_included, name)
    source, length = timeline.source, timeline.layout.window
    starts = find_window_starts(breaks, length, timeline.layout.stride, to_end=not source.labelled)
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
            f"no window of {source.path} is usable; {unusable[0]}",
            "a label in the last row of each window",
            "add labels, or choose window and stride so that windows end in labelled rows",
            key=source.key,
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
        file_rows=file_rows,
    )


def _check_length(
    timeline: Timeline, breaks: column_values.Mask, is_included: column_values.Mask, name: str = ""
) -> None:
    """Check that consecutive rows are long enough for at least one window."""
    length = timeline.layout.window
    # Rows outside of the part break the sequence.
    starts = np.flatnonzero(breaks | ~is_included)
    longest = int(np.diff(np.append(starts, len(breaks))).max(initial=0)) if is_included.any() else 0
    if longest < length:
        where = f"the {name} of {timeline.source.path} has at most" if name else f"{timeline.source.path} has at most"
        raise DataError(
            f"is {length}, and {where} {longest:,} consecutive rows",
            "a window no longer than the consecutive rows: of one series, without a gap above max_gap, on one side of the split",
            "a shorter window, longer series" + (", or another data.validation" if name else ""),
            key="data.window",
        )
