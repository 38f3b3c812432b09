"""Windows as samples: a fixed number of rows each, gathered from one array of all rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from runtime.data import copies
from runtime.data.copies import Contents
from runtime.data.dataset import Inputs, Targets
from runtime.data.stateless_random import Ids

FARTHEST = 1e6
"""New values are clipped at this many standard deviations from the mean."""
_COMPARED = 4096
"""Windows that are copied at a time to compare them; they may overlap."""


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
    form: str
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
        chosen = windows.index_select(0, torch.from_numpy(self.starts[ids]))
        return (chosen.view(len(ids), self.length, channels),)

    def contents(self) -> Contents:
        """A digest of each window."""
        parts = np.array_split(np.arange(len(self)), -(-len(self) // _COMPARED) or 1)
        return np.concatenate([copies.row_digests(self.gather(ids)[0].numpy()) for ids in parts])

    def change_arrays(self, change: Callable[[Any], Any]) -> None:
        """Replace the arrays in memory."""
        self.values = change(self.values)
        self.starts, self.numbers, self.file = change(self.starts), change(self.numbers), change(self.file)
        self.targets = {name: change(values) for name, values in self.targets.items()}

    def title(self, index: int) -> str:
        """File and number of one window."""
        return self.form.format(file=self.files[self.file[index]], number=self.numbers[index])


@dataclass(frozen=True)
class Scale:
    """Mean and standard deviation of each channel over the training rows."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def scaled(self, values: npt.NDArray[np.generic]) -> Tensor:
        """(value - mean) / std by channel; shape (R, C), float32."""
        made = np.empty(values.shape, np.float32)
        for channel, (mean, std) in enumerate(zip(self.mean, self.std, strict=True)):
            column = (values[:, channel].astype(np.float64) - mean) / std
            made[:, channel] = np.clip(column, -FARTHEST, FARTHEST)
        return torch.from_numpy(made)

    def to_json(self) -> dict[str, object]:
        """Plain JSON values: the keyword arguments of `Scale`, as lists."""
        return {name: list(numbers) for name, numbers in asdict(self).items()}


def fit(values: npt.NDArray[np.generic]) -> tuple[Scale, list[int]]:
    """The scale of training rows (R, C), and the channels with a constant value, which are only centered."""
    means, deviations, same = [], [], []
    for channel in range(values.shape[1]):
        column = values[:, channel].astype(np.float64)
        constant = bool(column.min() == column.max())
        means.append(float(column[0] if constant else column.mean()))
        deviations.append(1.0 if constant else float(column.std()))
        same += [channel] if constant else []
    return Scale(tuple(means), tuple(deviations)), same


def cut(breaks: npt.NDArray[np.bool_], length: int, stride: int) -> Ids:
    """The first row of every window.

    Args:
        breaks: whether a new contiguous stretch begins at each row; no window spans two.
        length: rows per window.
        stride: rows between the starts of two windows, counted from the start of each stretch.
    """
    begins = np.flatnonzero(breaks)
    lengths = np.diff(np.append(begins, len(breaks)))
    counts = np.maximum(0, (lengths - length) // stride + 1)
    within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.asarray(np.repeat(begins, counts) + within * stride, np.int64)


def longest(breaks: npt.NDArray[np.bool_]) -> int:
    """Rows in the longest contiguous stretch."""
    begins = np.flatnonzero(breaks)
    return int(np.diff(np.append(begins, len(breaks))).max(initial=0))


def joined(parts: Sequence[SeriesSplit]) -> SeriesSplit:
    """Concatenate the windows of several files."""
    offsets = np.cumsum([0, *(len(part.values) for part in parts)])
    return SeriesSplit(
        values=torch.cat([part.values for part in parts]),
        starts=np.concatenate([part.starts + offset for part, offset in zip(parts, offsets, strict=False)]),
        length=parts[0].length,
        targets={name: torch.cat([part.targets[name] for part in parts]) for name in parts[0].targets},
        numbers=np.concatenate([part.numbers for part in parts]),
        files=tuple(part.files[0] for part in parts),
        form=parts[0].form,
        file=np.repeat(np.arange(len(parts)), [len(part) for part in parts]),
    )
