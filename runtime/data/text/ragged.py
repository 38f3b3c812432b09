"""Ragged: rows of token ids of different lengths, end to end in one array."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt

from runtime.data.stateless_random import Ids


@dataclass(frozen=True)
class Ragged:
    """Rows of whole numbers."""

    flat: npt.NDArray[np.int32]
    """All rows, one after another."""
    offsets: npt.NDArray[np.int64]
    """Where each row begins, and at last the end; one more than rows."""

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """Numbers in each row."""
        return np.diff(self.offsets)

    def padded(self, rows: Ids, filler: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """These rows as a rectangle.

        Returns:
            The numbers, short rows filled up to the longest one of these, shape (len(rows), longest); and 1 where a
            number is the row's own, 0 where it is filler.
        """
        starts, lengths = self.offsets[rows], self.offsets[rows + 1] - self.offsets[rows]
        columns = np.arange(int(lengths.max(initial=0)))
        own = columns < lengths[:, None]
        places = np.where(own, starts[:, None] + columns, 0)
        return np.where(own, self.flat[places], filler).astype(np.int64), own.astype(np.int64)

    def cut(self, longest: int) -> Ragged:
        """The first `longest` numbers of each row."""
        kept = np.arange(len(self.flat)) - np.repeat(self.offsets[:-1], self.lengths) < longest
        return Ragged(self.flat[kept], _offsets(np.minimum(self.lengths, longest)))

    def replaced(self, rows: Ids, others: Ragged) -> Ragged:
        """The same with `others` in the place of `rows`, which have the same lengths."""
        flat = self.flat.copy()
        chosen = np.zeros(len(self), np.bool_)
        chosen[rows] = True
        flat[np.repeat(chosen, self.lengths)] = others.flat
        return Ragged(flat, self.offsets)


def of(parts: Iterable[Sequence[Sequence[int]]]) -> Ragged:
    """Rows that come in parts of many rows each."""
    flats, lengths = [np.zeros(0, np.int32)], [np.zeros(0, np.int64)]
    for part in parts:
        sizes = np.fromiter(map(len, part), np.int64, len(part))
        lengths.append(sizes)
        flats.append(np.fromiter(chain.from_iterable(part), np.int32, int(sizes.sum())))
    return Ragged(np.concatenate(flats), _offsets(np.concatenate(lengths)))


def _offsets(lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
