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
from drivetrain.data.dataset import Inputs, Targets
from drivetrain.data.formats import column_values
from drivetrain.data.notes import list_names
from drivetrain.data.reading import SampleTable
from drivetrain.data.scales import Scale, fit_scale
from drivetrain.data.source import BadSample
from drivetrain.data.stateless_random import Ids
from drivetrain.errors import DataError
from drivetrain.tasks.series.timeline import Timeline

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


@dataclass(kw_only=True)
class WindowTable(SampleTable):
    """Windows over the rows of one file; windows without a label are not among them."""

    noun = "windows"
    values: npt.NDArray[Any]
    """Shape (rows, channels), unscaled."""
    starts: Ids
    """First row of each window."""
    length: int
    """Rows per window."""
    numbers: Ids
    """Number of each window in messages: its last row in the file, or its index in the array."""
    title_format: str
    """Format of a window's name, with {file} and {number}."""
    stored: dict[str, Any]
    """Values on columns, axes and time steps that the preprocessing stores."""
    file_rows: Ids | None = None
    """Index of each row of `values` in the file; None for arrays."""
    is_early: column_values.Mask | None = None
    """Mask of the rows before the validation windows, if validation is the end of the time."""
    scaled: Tensor | None = None
    """Scaled rows, once a split is built."""

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and channels of a window."""
        return self.length, self.values.shape[1]

    def list_fitting_rows(self, training: Ids) -> npt.NDArray[np.generic]:
        """List the rows used to compute mean and standard deviation: before the validation, or in training windows."""
        if self.is_early is not None:
            return self.values[self.is_early]
        if self.file_rows is not None and len(training) == len(self.starts):
            return self.values
        is_fitted = np.zeros(len(self.values), np.bool_)
        is_fitted[(self.starts[training][:, None] + np.arange(self.length)).ravel()] = True
        return self.values if is_fitted.all() else self.values[is_fitted]

    def name_row(self, row: int) -> str:
        """Name a row of `values`: by its row in the file, or by its window in an array."""
        if self.file_rows is None:
            return f"x[{row // self.length}]"
        return self.source.name_row(int(self.file_rows[row]))

    def name_target(self, sample: int) -> str:
        """Name the place of the target of a window: the last row of the window, or an entry of the array."""
        number = int(self.numbers[sample])
        return f"y[{number}]" if self.file_rows is None else self.source.name_row(number - 1)

    def note_codes(self, scales: Sequence[Scale], names: Sequence[str], *, is_new: bool) -> list[str]:
        """Return notes by channel on values that are codes."""
        lines = []
        for column, name, scale in zip(self.values.T, names, scales, strict=True):
            values = column.astype(np.float64)
            is_code = scale.find_codes(values)
            share = float(is_code.mean())
            if is_code.any() and self.file_rows is None:
                share = float(is_code.reshape(-1, self.length).any(axis=1).mean())
            needed = share if share > self.source.budget else 0.0
            lines += scale.note_codes(name, values, self.name_row, is_new=is_new, bad_samples=needed)
        return lines

    def windows(self) -> npt.NDArray[Any]:
        """Return the windows of arrays, shape (N, T, channels)."""
        return self.values.reshape(-1, *self.shape)[self.starts // self.length]

    def check_shape(self, length: int, channels: int) -> None:
        """Check that windows have the shape of training; raises DataError if they do not."""
        if self.shape != (length, channels):
            raise DataError(
                f"windows of {self.source.path} are {self.length} rows of {self.shape[1]} channels",
                f"as in training: {length} rows of {channels} channels",
                "slice or convert them",
                key=self.source.key,
            )


def cut_all(timeline: Timeline) -> WindowTable:
    """Cut all windows of a long table; none spans two groups, if it has groups.

    Rows to predict, which have no labels, also get the windows that end in the last row of each stretch.

    Raises:
        DataError: if there is no window, or too many windows have no label.
    """
    breaks, groups = timeline.order.find_breaks(timeline.layout.max_gap), timeline.groups
    if groups is not None:
        breaks[1:] |= groups[1:] != groups[:-1]
    starts, notes = _find_usable(timeline, breaks, np.ones(len(timeline), np.bool_))
    if not timeline.source.labelled:
        notes += _note_rows_without_window(timeline, breaks)
    table = _build_table(timeline, starts, notes)
    if groups is None:
        return table
    return replace(table, groups=np.unique(groups[starts], return_inverse=True)[1].astype(np.int64))


def _build_table(timeline: Timeline, starts: Ids, notes: list[str]) -> WindowTable:
    """Build the windows of a long table, each with the target of its last row."""
    last_rows = starts + timeline.layout.window - 1
    return WindowTable(
        source=timeline.source,
        usable=np.arange(len(starts), dtype=np.int64),
        targets={"": timeline.target.take(last_rows)} if timeline.target else {},
        notes=[*timeline.notes, *notes],
        values=timeline.values,
        starts=starts,
        length=timeline.layout.window,
        numbers=timeline.order.rows[last_rows] + 1,
        title_format="{file} rows to {number}",
        stored={"form": "long", **timeline.layout.to_json()},
        file_rows=timeline.order.rows,
    )


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


def cut_before_and_after(timeline: Timeline, share: float) -> WindowTable:
    """Cut training windows before a point in time, and validation windows from it on: a share of the rows.

    No window spans that point.

    Raises:
        DataError: if one side has no window, or too many windows have no label.
    """
    is_validation = timeline.order.find_last_rows(share)
    breaks = timeline.order.find_breaks(timeline.layout.max_gap)
    _check_length(timeline, breaks, np.ones(len(timeline), np.bool_))
    breaks[1:] |= is_validation[1:] != is_validation[:-1]
    early, early_notes = _find_usable(timeline, breaks, ~is_validation, "training part")
    late, late_notes = _find_usable(timeline, breaks, is_validation, "validation part")
    table = _build_table(timeline, np.concatenate([early, late]), [*early_notes, *late_notes])
    table = replace(table, is_early=~is_validation)
    _check_classes_before(table, share)
    return table


def divide_in_time(table: WindowTable) -> tuple[Ids, Ids]:
    """Return the windows before the point of `cut_before_and_after` and the windows from it on."""
    assert table.is_early is not None
    is_training = table.is_early[table.starts]
    return table.usable[is_training], table.usable[~is_training]


def _check_classes_before(table: WindowTable, share: float) -> None:
    """Refuse classes that occur only in the last part of the time and so have no training sample."""
    target, key = table.targets[""], table.source.key
    if target.indices is None:
        return
    training, validation = divide_in_time(table)
    train_classes = target_columns.list_classes(target, training, key)
    validation_counts = Counter(target.list_names(validation))
    if without_training := [
        f'"{name}" ({validation_counts[name]:,} windows)'
        for name in sorted(set(validation_counts) - set(train_classes))
    ]:
        raise DataError(
            f"{', '.join(without_training)} come only in the last {share:.0%} of the time, which is for validation",
            "every class in the training part too",
            "set data.validation to another share, a file or `groups`, or leave these rows out",
            key=key,
        )


def _find_usable(
    timeline: Timeline, breaks: column_values.Mask, is_included: column_values.Mask, name: str = ""
) -> tuple[Ids, list[str]]:
    """Find the first rows of windows of the included rows that have a label in their last row; also returns notes."""
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
    return starts[has_label], notes


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
