"""Texts as tokens, column by column, and the sequences that are made of them: special tokens, truncation, token types."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from runtime.data.text.ragged import Ragged
from runtime.data.text.template import Template
from runtime.job.text import Truncation

Lengths = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Encoded:
    """The tokens of each text column, without special tokens."""

    columns: tuple[Ragged, ...]
    template: Template

    @property
    def lengths(self) -> Lengths:
        """Tokens of each sample before truncation, special tokens included."""
        return _sum(self.columns) + self.template.count

    def sequences(self, longest: int | None = None, side: Truncation = "right") -> Ragged:
        """The tokens of each sample, special tokens included.

        Args:
            longest: largest number of tokens; None for all. Special tokens are kept. Of several columns, the longest
                is truncated first.
            side: the end of each column at which tokens are left out; `middle` keeps a quarter from the start and the
                rest from the end (C. Sun et al. 2019, How to Fine-Tune BERT for Text Classification?: 128 and 382).
        """
        return _woven([place.ids for place in self.template.specials], self._kept(longest, side))

    def types(self, longest: int | None = None, side: Truncation = "right") -> Ragged:
        """The token type of each token of `sequences` with the same arguments."""
        columns = [
            Ragged(np.full(len(column.flat), own, np.int32), column.offsets)
            for column, own in zip(self._kept(longest, side), self.template.types, strict=True)
        ]
        return _woven([place.types for place in self.template.specials], columns)

    def _kept(self, longest: int | None, side: Truncation) -> list[Ragged]:
        if longest is None or not (self.lengths > longest).any():
            return list(self.columns)
        room = max(0, longest - self.template.count)
        kept = shares(np.stack([column.lengths for column in self.columns], axis=1), room)
        return [_truncated(column, kept[:, i], side) for i, column in enumerate(self.columns)]


def shares(lengths: Lengths, room: int) -> Lengths:
    """Tokens to keep of each column, (N, columns): the longest column is truncated first, as `longest_first` does."""
    order = np.argsort(lengths, axis=1, kind="stable")
    kept, left = np.zeros_like(lengths), np.full(len(lengths), room, np.int64)
    rows, columns = np.arange(len(lengths)), lengths.shape[1]
    for place in range(columns):
        column = order[:, place]
        taken = np.minimum(lengths[rows, column], left // (columns - place))
        kept[rows, column] = taken
        left -= taken
    return kept


def _truncated(column: Ragged, kept: Lengths, side: Truncation) -> Ragged:
    """Keep so many tokens of each row."""
    head = {"right": kept, "left": np.zeros_like(kept), "middle": (kept + 2) // 4}[side]
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(kept)])
    place = np.arange(offsets[-1]) - np.repeat(offsets[:-1], kept)
    skipped = np.where(place < np.repeat(head, kept), 0, np.repeat(column.lengths - kept, kept))
    return Ragged(column.flat[np.repeat(column.offsets[:-1], kept) + skipped + place], offsets)


def _woven(specials: Sequence[Sequence[int]], columns: Sequence[Ragged]) -> Ragged:
    """Rows of the columns one after another, with the same numbers before, between and behind them."""
    lengths = _sum(columns) + sum(map(len, specials))
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    flat, place = np.empty(offsets[-1], np.int32), offsets[:-1].copy()
    for special, column in zip(specials, [*columns, None], strict=True):
        for number in special:
            flat[place] = number
            place += 1
        if column is not None:
            within = np.arange(len(column.flat)) - np.repeat(column.offsets[:-1], column.lengths)
            flat[np.repeat(place, column.lengths) + within] = column.flat
            place += column.lengths
    return Ragged(flat, offsets)


def _sum(columns: Sequence[Ragged]) -> Lengths:
    return np.asarray(sum(column.lengths for column in columns), np.int64)
