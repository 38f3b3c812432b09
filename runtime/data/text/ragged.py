"""Sequences of token ids of different lengths, concatenated in one array."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from runtime.data.stateless_random import Ids


@dataclass(frozen=True)
class Ragged:
    """Rows of integers of different lengths."""

    flat: npt.NDArray[np.int32]
    """All rows, one after another."""
    offsets: npt.NDArray[np.int64]
    """Start of each row, and the end of the last; one more than rows."""

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """Length of each row."""
        return np.diff(self.offsets)

    def changed(self, change: Callable[[Any], Any]) -> Ragged:
        """The same rows with what `change` makes of their arrays."""
        return Ragged(change(self.flat), change(self.offsets))

    def padded(self, rows: Ids, filler: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """These rows, padded to a rectangle.

        Returns:
            The numbers, padded to the longest of these rows, shape (len(rows), longest); and the mask: 1 for a row's
            own
            numbers, 0 for padding.
        """
        starts, lengths = self.offsets[rows], self.offsets[rows + 1] - self.offsets[rows]
        columns = np.arange(int(lengths.max(initial=0)))
        own = columns < lengths[:, None]
        places = np.where(own, starts[:, None] + columns, 0)
        return np.where(own, self.flat[places], filler).astype(np.int64), own.astype(np.int64)


def of(parts: Iterable[Sequence[Sequence[int]]]) -> Ragged:
    """Build from chunks of many rows each."""
    flats, lengths = [np.zeros(0, np.int32)], [np.zeros(0, np.int64)]
    for part in parts:
        sizes = np.fromiter(map(len, part), np.int64, len(part))
        lengths.append(sizes)
        flats.append(np.fromiter(chain.from_iterable(part), np.int32, int(sizes.sum())))
    return Ragged(np.concatenate(flats), _offsets(np.concatenate(lengths)))


def _offsets(lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
