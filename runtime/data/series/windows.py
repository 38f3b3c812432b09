"""Windows: samples of a fixed number of rows, gathered from one array in which all rows lie together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from runtime.data.dataset import Inputs, Targets
from runtime.data.stateless_random import Ids

FARTHEST = 1e6
"""Deviations from the mean at which a new value is cut off."""


@dataclass
class SeriesSplit:
    """Windows of the rows (R, C); window i is the rows from starts[i] on. Windows may share rows."""

    values: Tensor
    """Shape (R, C), float32, scaled; contiguous."""
    starts: Ids
    length: int
    """Rows in a window."""
    targets: Targets
    numbers: Ids
    """What each window is called by: the row of the file that it ends in, or its place in the array."""
    files: tuple[str, ...]
    form: str
    """How file and number are written."""
    file: Ids
    """The file of each window."""

    def __len__(self) -> int:
        return len(self.starts)

    def gather(self, ids: Ids) -> Inputs:
        """One tensor (N, length, C) float32."""
        count, channels = self.values.shape
        # Each row of this view is a window; views share the memory of the rows.
        windows = self.values.as_strided((count - self.length + 1, self.length * channels), (channels, 1))
        chosen = windows.index_select(0, torch.from_numpy(self.starts[ids]))
        return (chosen.view(len(ids), self.length, channels),)

    def title(self, index: int) -> str:
        """File and number of one window."""
        return self.form.format(file=self.files[self.file[index]], number=self.numbers[index])


@dataclass(frozen=True)
class Scale:
    """Mean and deviation of each channel over the training rows."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def scaled(self, values: npt.NDArray[Any]) -> Tensor:
        """(value - mean) / std by channel; shape (R, C), float32."""
        made = np.empty(values.shape, np.float32)
        for channel, (mean, std) in enumerate(zip(self.mean, self.std, strict=True)):
            column = (values[:, channel].astype(np.float64) - mean) / std
            made[:, channel] = np.clip(column, -FARTHEST, FARTHEST)
        return torch.from_numpy(made)

    def to_json(self) -> dict[str, Any]:
        """Plain data: the keyword arguments of `Scale`, as lists."""
        return {name: list(numbers) for name, numbers in asdict(self).items()}


def fit(values: npt.NDArray[Any]) -> tuple[Scale, list[int]]:
    """The scale of training rows (R, C), and the channels that have one value everywhere: those are only centred."""
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
        breaks: whether a new stretch of rows begins at each row; no window reaches across.
        length: rows in a window.
        stride: rows from the start of one window to the next, counted from the start of each stretch.
    """
    begins = np.flatnonzero(breaks)
    lengths = np.diff(np.append(begins, len(breaks)))
    counts = np.maximum(0, (lengths - length) // stride + 1)
    within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.asarray(np.repeat(begins, counts) + within * stride, np.int64)


def longest(breaks: npt.NDArray[np.bool_]) -> int:
    """Rows of the longest stretch."""
    begins = np.flatnonzero(breaks)
    return int(np.diff(np.append(begins, len(breaks))).max(initial=0))


def joined(parts: Sequence[SeriesSplit]) -> SeriesSplit:
    """The windows of several files as one split, in order."""
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
