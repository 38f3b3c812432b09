"""Provides windows as samples: a fixed number of rows each, gathered from one array of all rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from drivetrain.data import copies
from drivetrain.data.copies import Contents
from drivetrain.data.dataset import Inputs, Targets
from drivetrain.data.groups import Groups, find_root
from drivetrain.data.stateless_random import Ids

MAX_DEVIATIONS = 1e6
"""New values are clipped at this many standard deviations from the mean."""
_COMPARED_WINDOWS = 4096
"""Number of windows that are gathered at a time to compute their digests."""
PLACE_ROWS = 4
"""Number of consecutive rows by which a place of a recording is recognized; each must differ from the row before."""
MAX_PLACES = 2_000_000
"""Largest number of places that are compared. Of more, those with the smallest hashes are chosen, so that equal places
are chosen in every window.
"""


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
    """The number of each window in messages: its last row in the file, or its index in the array."""
    files: tuple[str, ...]
    title_format: str
    """Format of a window's name, from file and number."""
    file: Ids
    """Index of each window's file."""

    def __len__(self) -> int:
        return len(self.starts)

    def gather(self, ids: Ids) -> Inputs:
        """One tensor (N, length, C) float32."""
        count, channels = self.values.shape
        # Each row of this view is a window; overlapping windows share memory.
        windows = self.values.as_strided((count - self.length + 1, self.length * channels), (channels, 1))
        gathered = windows.index_select(0, torch.from_numpy(self.starts[ids]))
        return (gathered.view(len(ids), self.length, channels),)

    def contents(self) -> Contents:
        """A digest of each window."""
        parts = np.array_split(np.arange(len(self)), -(-len(self) // _COMPARED_WINDOWS) or 1)
        return np.concatenate([copies.digest_rows(self.gather(ids)[0].numpy()) for ids in parts])

    def change_arrays(self, change: Callable[[Any], Any]) -> None:
        """Replace the arrays in memory."""
        self.values = change(self.values)
        self.starts, self.numbers, self.file = change(self.starts), change(self.numbers), change(self.file)
        self.targets = {name: change(values) for name, values in self.targets.items()}

    def title(self, index: int) -> str:
        """File and number of one window."""
        return self.title_format.format(file=self.files[self.file[index]], number=self.numbers[index])


@dataclass(frozen=True)
class Scale:
    """Mean and standard deviation of each channel over the training rows."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def scale(self, values: npt.NDArray[np.generic]) -> Tensor:
        """(value - mean) / std by channel; shape (R, C), float32."""
        result = np.empty(values.shape, np.float32)
        for channel, (mean, std) in enumerate(zip(self.mean, self.std, strict=True)):
            column = (values[:, channel].astype(np.float64) - mean) / std
            result[:, channel] = np.clip(column, -MAX_DEVIATIONS, MAX_DEVIATIONS)
        return torch.from_numpy(result)

    def to_json(self) -> dict[str, object]:
        """Plain JSON values: the keyword arguments of `Scale`, as lists."""
        return {name: list(numbers) for name, numbers in asdict(self).items()}


def fit_scale(values: npt.NDArray[np.generic]) -> tuple[Scale, list[int]]:
    """The scale of training rows (R, C), and the channels with a constant value, which are only centered."""
    means, deviations, constant_channels = [], [], []
    for channel in range(values.shape[1]):
        column = values[:, channel].astype(np.float64)
        is_constant = bool(column.min() == column.max())
        means.append(float(column[0] if is_constant else column.mean()))
        deviations.append(1.0 if is_constant else float(column.std()))
        constant_channels += [channel] if is_constant else []
    return Scale(tuple(means), tuple(deviations)), constant_channels


def find_window_starts(breaks: npt.NDArray[np.bool_], length: int, stride: int) -> Ids:
    """The first row of every window, `stride` rows apart from the start of each stretch; no window spans a break."""
    stretch_starts = np.flatnonzero(breaks)
    stretch_lengths = np.diff(np.append(stretch_starts, len(breaks)))
    counts = np.maximum(0, (stretch_lengths - length) // stride + 1)
    number_in_stretch = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.asarray(np.repeat(stretch_starts, counts) + number_in_stretch * stride, np.int64)


def measure_longest_stretch(breaks: npt.NDArray[np.bool_]) -> int:
    """Rows in the longest contiguous stretch."""
    stretch_starts = np.flatnonzero(breaks)
    return int(np.diff(np.append(stretch_starts, len(breaks))).max(initial=0))


def join_splits(parts: Sequence[SeriesSplit]) -> SeriesSplit:
    """Concatenate the windows of several files."""
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


def number_stretches(values: npt.NDArray[Any]) -> Groups:
    """Number the stretches of windows (N, T, channels) that share rows, directly or through others; shape (N,).

    Such windows, as those that slide over one recording, would give the answer away if they were on both sides of a split.
    """
    count, length = values.shape[:2]
    if length < PLACE_ROWS:
        return np.arange(count)
    # A place is recognized by a hash of its rows: a sum with fixed weights, which differ by row and channel.
    weights = np.random.default_rng(0).normal(size=(PLACE_ROWS, values.shape[2]))
    places = length - PLACE_ROWS + 1
    hashes = np.zeros((count, places))
    is_changing = np.ones((count, places), np.bool_)
    for row in range(PLACE_ROWS):
        shifted_rows = values[:, row : row + places].astype(np.float64)
        # Channels are added one by one, so that rounding does not depend on where in the window the row is.
        for channel in range(values.shape[2]):
            hashes += shifted_rows[:, :, channel] * weights[row, channel]
        if row:
            is_changing &= (shifted_rows != values[:, row - 1 : row - 1 + places]).any(axis=2)
    window_of_place = np.broadcast_to(np.arange(count)[:, None], hashes.shape)[is_changing]
    row_hashes = hashes[is_changing]
    # Places are chosen by their hash, so that equal places are either all chosen or all left out.
    if len(row_hashes) > MAX_PLACES:
        mixed_hashes = row_hashes.view(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        is_sampled = mixed_hashes <= np.partition(mixed_hashes, MAX_PLACES)[MAX_PLACES]
        window_of_place, row_hashes = window_of_place[is_sampled], row_hashes[is_sampled]
    # Windows with equal hashes are joined, and so are those that they share rows with.
    order = np.argsort(row_hashes, kind="stable")
    is_same_hash = row_hashes[order][1:] == row_hashes[order][:-1]
    pairs = np.unique(
        np.stack([window_of_place[order][:-1][is_same_hash], window_of_place[order][1:][is_same_hash]], axis=1), axis=0
    )
    parents = list(range(count))
    for one, two in pairs.tolist():
        first, second = sorted((find_root(parents, one), find_root(parents, two)))
        parents[second] = first
    roots = [find_root(parents, window) for window in range(count)]
    return np.unique(roots, return_inverse=True)[1].astype(np.int64)


def describe_shared(training: npt.NDArray[Any], validation: npt.NDArray[Any]) -> list[str]:
    """A note on validation windows (N, T, channels) that share rows with training windows, directly or through others."""
    numbers = number_stretches(np.concatenate([training, validation]))
    shared = int(np.isin(numbers[len(training) :], numbers[: len(training)]).sum())
    if not shared:
        return []
    return [
        f"{shared:,} of {len(validation):,} validation windows share rows with training windows, so the score says little "
        "about new recordings"
    ]
