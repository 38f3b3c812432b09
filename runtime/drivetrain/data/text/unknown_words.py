"""Measures the unknown part of texts for a tokenizer: a network reads all unknown words as the same token."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from drivetrain.data.notes import list_names
from drivetrain.data.text.encoded import Encoded
from drivetrain.data.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from drivetrain.data.text.tokenizer import Texts

MAX_SHARE = 0.5
"""Largest share of unknown tokens in training texts; above it, too little is left for a network to learn from."""
MAX_LISTED_WORDS = 3
"""Largest number of unknown words that a note lists."""
MAX_LETTERS = 40
"""Largest number of letters of an unknown word that a note shows."""


@dataclass(frozen=True)
class UnknownWords:
    """Counts of unknown tokens and texts, before truncation and without special tokens."""

    share: float
    """Share of the tokens that are unknown."""
    unread: int
    """Number of texts without any known token."""
    texts: int
    example: int | None
    """Index of a text with an unknown word, preferably without any known word; None if all words are known."""


def measure(text_tokenizer: Tokenizer, encoded: Encoded) -> UnknownWords:
    """Count the unknown tokens of texts, and the texts without other tokens."""
    tokens, unknown = np.zeros((2, len(encoded.columns[0])), np.int64)
    for column in encoded.columns:
        is_unknown = column.flat == (-1 if text_tokenizer.unknown_token is None else text_tokenizer.unknown_token)
        counts = np.concatenate([np.zeros(1, np.int64), np.cumsum(is_unknown)])
        unknown += counts[column.offsets[1:]] - counts[column.offsets[:-1]]
        tokens += column.lengths
    # Some tokenizers have no unknown token and drop unknown letters: such a text may have no tokens at all.
    unread = np.flatnonzero(tokens == unknown)
    candidates = unread if len(unread) else np.flatnonzero(unknown)
    example = int(candidates[0]) if len(candidates) else None
    return UnknownWords(float(unknown.sum() / max(1, tokens.sum())), len(unread), len(tokens), example)


def describe(
    counts: UnknownWords, text_tokenizer: Tokenizer, texts: Texts, name: str, title: Callable[[int], str]
) -> list[str]:
    """Return a note on the unknown words of texts, if there are any; `name` names the texts, `title` one text."""
    if counts.example is None:
        return []
    cells = (column[counts.example].as_py() for column in texts)
    unknown = dict.fromkeys(word for cell in cells for word in text_tokenizer.find_unknown_words(cell))
    quoted = [f'"{word[:MAX_LETTERS]}{"…" if len(word) > MAX_LETTERS else ""}"' for word in unknown]
    unread = f"; {counts.unread:,} of {counts.texts:,} texts have no known word" if counts.unread else ""
    listed = f" ({list_names(quoted, MAX_LISTED_WORDS)})" if quoted else ""
    return [
        f"{counts.share:.2%} of the tokens of the {name} are unknown to the network{unread}, such as {title(counts.example)}{listed}"
    ]
