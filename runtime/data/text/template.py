"""The special tokens around the text columns of a sample, as its tokenizer sets them."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import tokenizers

_TRIED = ("a", "1", ".", "the")
"""Texts of which one has a token in any vocabulary."""


@dataclass(frozen=True)
class SpecialTokens:
    """Special tokens in one place, each with its token type (the segment of BERT)."""

    ids: tuple[int, ...] = ()
    types: tuple[int, ...] = ()


@dataclass(frozen=True)
class Template:
    """Special tokens before the first column, between two, and behind the last; and the token type of each column."""

    specials: tuple[SpecialTokens, ...]
    """One more than columns."""
    types: tuple[int, ...]

    @property
    def count(self) -> int:
        """Number of special tokens of a sample."""
        return sum(len(place.ids) for place in self.specials)

    @property
    def segments(self) -> int:
        """One more than the largest token type."""
        return 1 + max(0, *self.types, *(each for place in self.specials for each in place.types))


def find(inner: tokenizers.Tokenizer, columns: int) -> Template | None:
    """The template of a tokenizer; None if it has no special token that can separate columns.

    One column has the tokenizer's template of a text, two have its template of a pair. More are joined to one text, with
    the special tokens that stand between the texts of a pair.
    """
    one = _probed(inner, 1)
    if columns == 1:
        return one
    pair = _probed(inner, 2)
    if not pair.specials[1].ids:
        # A tokenizer without a template of its own for pairs: the separator is what ends a text.
        end = one.specials[-1].ids
        if not end:
            return None
        return _joined(one, end, columns)
    return pair if columns == 2 else _joined(one, pair.specials[1].ids, columns)


def _joined(one: Template, between: tuple[int, ...], columns: int) -> Template:
    first, last = one.specials
    own = one.types[0]
    middle = SpecialTokens(between, (own,) * len(between))
    return Template((first, *[middle] * (columns - 1), last), (own,) * columns)


def _probed(inner: tokenizers.Tokenizer, columns: int) -> Template:
    """Encode a short text, or a pair, and see what stands around it."""
    for text in _TRIED:
        encoding = inner.encode(text, text if columns == 2 else None)
        sequences = list(encoding.sequence_ids)
        if all(number in sequences for number in range(columns)):
            break
    starts = [sequences.index(number) for number in range(columns)]
    ends = [len(sequences) - sequences[::-1].index(number) for number in range(columns)]
    specials = [
        SpecialTokens(tuple(encoding.ids[start:end]), tuple(encoding.type_ids[start:end]))
        for start, end in pairwise(
            [0, *(each for part in zip(starts, ends, strict=True) for each in part), len(sequences)]
        )
    ]
    return Template(tuple(specials[::2]), tuple(encoding.type_ids[start] for start in starts))
