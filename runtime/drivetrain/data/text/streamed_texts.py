"""Texts in shards, as the tokens that lie in the cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch

from drivetrain.data.dataset import Inputs, Targets
from drivetrain.data.stateless_random import Ids
from drivetrain.data.streaming import open_stream
from drivetrain.data.streaming.reader import ShardReader
from drivetrain.data.text.text_shards import TokenRows

TITLE_CHARACTERS = 80
"""Characters of a text in its title."""


@dataclass
class StreamedTexts:
    """Some rows of the shards of an address, tokenized when their shard is fetched."""

    masked: ClassVar = True
    reader: ShardReader
    rows: Ids
    targets: Targets
    lengths: npt.NDArray[np.int64]
    """Tokens of each text, estimated from its bytes; at most `max_length`."""

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def kept(self) -> TokenRows:
        """How the texts lie in the cache."""
        assert isinstance(self.reader.rows, TokenRows)
        return self.reader.rows

    def gather(self, ids: Ids) -> Inputs:
        """Token ids, token types if the network has them, and attention mask; all (N, longest of these) int64.

        Raises:
            DataError: if a shard has changed.
            StorageError: if a shard cannot be fetched.
        """
        ragged_rows, every = self.kept.ragged(self.reader.read(self.rows[ids])), np.arange(len(ids), dtype=np.int64)
        filled, mask = ragged_rows[0].padded(every, self.kept.words.pad)
        types = (torch.from_numpy(kind.padded(every, 0)[0]) for kind in ragged_rows[1:])
        return torch.from_numpy(filled), *types, torch.from_numpy(mask)

    def title(self, index: int) -> str:
        """Shard, number and first words of a text, as the tokenizer reads it."""
        row = self.rows[index : index + 1]
        text = self.kept.words.inner.decode(self.kept.ragged(self.reader.read(row))[0].flat.tolist())
        return f"{self.reader.index.title(int(row[0]))}: {text[:TITLE_CHARACTERS]}{'…' if len(text) > TITLE_CHARACTERS else ''}"

    def fetching(self, groups: Sequence[Ids]) -> AbstractContextManager[Callable[[int], None]]:
        """Fetch the shards of these batches ahead."""
        return open_stream.fetching(self.reader, [self.rows[ids] for ids in groups])
