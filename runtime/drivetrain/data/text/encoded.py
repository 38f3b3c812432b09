"""Texts as tokens, column by column, and the sequences made from them: special tokens, truncation, token types."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from drivetrain.data.dataset import Inputs
from drivetrain.data.stateless_random import Ids
from drivetrain.job.text import Truncation

if TYPE_CHECKING:
    import tokenizers

Lengths = npt.NDArray[np.int64]
_PROBE_TEXTS = ("a", "1", ".", "the")
"""Texts chosen so that any vocabulary has a token for at least one of them."""


@dataclass(frozen=True)
class Ragged:
    """Rows of integers of different lengths."""

    flat: npt.NDArray[np.int32]
    """All rows, one after another."""
    offsets: npt.NDArray[np.int64]
    """Start of each row, and the end of the last row: one more entry than rows."""

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """Length of each row."""
        return np.diff(self.offsets)

    def pad(self, rows: Ids, filler: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Pad some rows with `filler`; returns them and a mask: 1 for numbers of the row, 0 for padding.

        Both have the shape (len(rows), length of the longest row).
        """
        starts, lengths = self.offsets[rows], self.offsets[rows + 1] - self.offsets[rows]
        columns = np.arange(int(lengths.max(initial=0)))
        is_real = columns < lengths[:, None]
        indices = np.where(is_real, starts[:, None] + columns, 0)
        return np.where(is_real, self.flat[indices], filler).astype(np.int64), is_real.astype(np.int64)

    @classmethod
    def from_chunks(cls, chunks: Iterable[Sequence[Sequence[int]]]) -> Ragged:
        """Build from chunks of many rows each, so that not all rows exist as Python lists at once."""
        flats, lengths = [np.zeros(0, np.int32)], [np.zeros(0, np.int64)]
        for chunk in chunks:
            sizes = np.fromiter(map(len, chunk), np.int64, len(chunk))
            lengths.append(sizes)
            flats.append(np.fromiter(chain.from_iterable(chunk), np.int32, int(sizes.sum())))
        return cls(np.concatenate(flats), _to_offsets(np.concatenate(lengths)))


def pad_inputs(tokens: Ragged, types: Sequence[Ragged], rows: Ids, pad: int) -> Inputs:
    """Pad N rows to the longest: token ids, token types if there are any, and attention mask, all (N, tokens) int64."""
    import torch

    padded_tokens, mask = tokens.pad(rows, pad)
    padded_types = (torch.from_numpy(type_rows.pad(rows, 0)[0]) for type_rows in types)
    return torch.from_numpy(padded_tokens), *padded_types, torch.from_numpy(mask)


@dataclass(frozen=True)
class SpecialTokens:
    """Consecutive special tokens, such as the tokens between two columns, and their token types (segments of BERT)."""

    ids: tuple[int, ...] = ()
    types: tuple[int, ...] = ()


@dataclass(frozen=True)
class Template:
    """Special tokens before the first column, between two columns and after the last; token type of each column."""

    specials: tuple[SpecialTokens, ...]
    """Groups of special tokens, one more than columns: before, between and after the columns."""
    types: tuple[int, ...]
    """Token type of the texts of each column."""

    @property
    def count(self) -> int:
        """Number of special tokens of a sample."""
        return sum(len(special.ids) for special in self.specials)

    @property
    def segments(self) -> int:
        """Number of token types: one more than the largest."""
        return 1 + max(0, *self.types, *(type_number for special in self.specials for type_number in special.types))


@dataclass(frozen=True)
class Encoded:
    """Tokens of each text column, without special tokens."""

    columns: tuple[Ragged, ...]
    template: Template

    @property
    def lengths(self) -> Lengths:
        """Number of tokens of each sample before truncation, special tokens included."""
        return _sum_lengths(self.columns) + self.template.count

    def sequences(self, longest: int | None = None, side: Truncation = "right") -> Ragged:
        """Return the tokens of each sample, special tokens included.

        Args:
            longest: largest number of tokens; None for all. Special tokens are kept; the longest column is cut first.
            side: the end of each column that is truncated; `middle` keeps a quarter from the start and the rest from
                the end (C. Sun et al. 2019, How to Fine-Tune BERT for Text Classification?: 128 and 382).
        """
        return _interleave([special.ids for special in self.template.specials], self._truncate_columns(longest, side))

    def types(self, longest: int | None = None, side: Truncation = "right") -> Ragged:
        """Return the token type of each token of `sequences` with the same arguments."""
        columns = [
            Ragged(np.full(len(column.flat), type_number, np.int32), column.offsets)
            for column, type_number in zip(self._truncate_columns(longest, side), self.template.types, strict=True)
        ]
        return _interleave([special.types for special in self.template.specials], columns)

    def _truncate_columns(self, longest: int | None, side: Truncation) -> list[Ragged]:
        """Truncate the columns, without special tokens, so that with them no sample is longer than `longest`."""
        if longest is None or not (self.lengths > longest).any():
            return list(self.columns)
        # Special tokens are always kept, so they take their part of the length first.
        room = max(0, longest - self.template.count)
        kept_tokens = share_room(np.stack([column.lengths for column in self.columns], axis=1), room)
        return [_truncate(column, kept_tokens[:, i], side) for i, column in enumerate(self.columns)]


def share_room(lengths: Lengths, room: int) -> Lengths:
    """Choose the tokens to keep of each column, truncating the longest first (`longest_first` of the library).

    Args:
        lengths: tokens of each column, (N, columns).
        room: tokens to keep of each sample at most.

    Returns:
        Tokens to keep, (N, columns).
    """
    # From the shortest column to the longest: each takes an equal share of the remaining room, up to its own length.
    order = np.argsort(lengths, axis=1, kind="stable")
    kept_tokens, tokens_left = np.zeros_like(lengths), np.full(len(lengths), room, np.int64)
    rows, columns = np.arange(len(lengths)), lengths.shape[1]
    for rank in range(columns):
        column = order[:, rank]
        tokens_taken = np.minimum(lengths[rows, column], tokens_left // (columns - rank))
        kept_tokens[rows, column] = tokens_taken
        tokens_left -= tokens_taken
    return kept_tokens


def _truncate(column: Ragged, kept_tokens: Lengths, side: Truncation) -> Ragged:
    """Keep `kept_tokens` tokens of each row; `side` is the end that is truncated."""
    # Number of tokens kept from the start of a row; the remaining ones are taken from its end.
    head = {"right": kept_tokens, "left": np.zeros_like(kept_tokens), "middle": (kept_tokens + 2) // 4}[side]
    offsets = _to_offsets(kept_tokens)
    position = np.arange(offsets[-1]) - np.repeat(offsets[:-1], kept_tokens)
    skipped = np.where(position < np.repeat(head, kept_tokens), 0, np.repeat(column.lengths - kept_tokens, kept_tokens))
    return Ragged(column.flat[np.repeat(column.offsets[:-1], kept_tokens) + skipped + position], offsets)


def _interleave(specials: Sequence[Sequence[int]], columns: Sequence[Ragged]) -> Ragged:
    """Join the columns of each row, with the same special numbers before, between and after them."""
    # All rows are filled at once: `position` is the index for the next number of each row.
    lengths = _sum_lengths(columns) + sum(map(len, specials))
    offsets = _to_offsets(lengths)
    flat, position = np.empty(offsets[-1], np.int32), offsets[:-1].copy()
    for special, column in zip(specials, [*columns, None], strict=True):
        for number in special:
            flat[position] = number
            position += 1
        if column is not None:
            position_in_row = np.arange(len(column.flat)) - np.repeat(column.offsets[:-1], column.lengths)
            flat[np.repeat(position, column.lengths) + position_in_row] = column.flat
            position += column.lengths
    return Ragged(flat, offsets)


def _sum_lengths(columns: Sequence[Ragged]) -> Lengths:
    """Count the tokens of each row in all columns together, (N,)."""
    return np.asarray(sum(column.lengths for column in columns), np.int64)


def _to_offsets(lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the index at which each row begins, and the end of the last row: (N + 1,)."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])


def find_template(inner: tokenizers.Tokenizer, columns: int) -> Template | None:
    """Return the template of a tokenizer; None if it has no special token that can separate columns.

    One column has the tokenizer's template of a text, two columns its template of a pair. More columns are joined into
    one text, separated by the special tokens between the texts of a pair.
    """
    one = _probe_template(inner, 1)
    if columns == 1:
        return one
    pair = _probe_template(inner, 2)
    if not pair.specials[1].ids:
        # A tokenizer without its own template for pairs: the special tokens at the end of a text separate columns.
        end = one.specials[-1].ids
        if not end:
            return None
        return _join_columns(one, end, columns)
    return pair if columns == 2 else _join_columns(one, pair.specials[1].ids, columns)


def _join_columns(one: Template, between: tuple[int, ...], columns: int) -> Template:
    """Extend the template `one` of a single text to several columns, separated by the special tokens `between`."""
    first, last = one.specials
    type_number = one.types[0]
    middle = SpecialTokens(between, (type_number,) * len(between))
    return Template((first, *[middle] * (columns - 1), last), (type_number,) * columns)


def _probe_template(inner: tokenizers.Tokenizer, columns: int) -> Template:
    """Find the template of one text, or of a pair: encode a short text, and take the special tokens around it."""
    for text in _PROBE_TEXTS:
        encoding = inner.encode(text, text if columns == 2 else None)
        sequences = list(encoding.sequence_ids)
        if all(number in sequences for number in range(columns)):
            break
    # `sequences` has the column number of each token, None for a special token.
    starts = [sequences.index(number) for number in range(columns)]
    ends = [len(sequences) - sequences[::-1].index(number) for number in range(columns)]
    specials = [
        SpecialTokens(tuple(encoding.ids[start:end]), tuple(encoding.type_ids[start:end]))
        for start, end in pairwise(
            [0, *(boundary for part in zip(starts, ends, strict=True) for boundary in part), len(sequences)]
        )
    ]
    return Template(tuple(specials[::2]), tuple(encoding.type_ids[start] for start in starts))
