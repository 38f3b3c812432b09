"""A split of texts that are streamed from shards; the cache stores them as tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from drivetrain.data.dataset import Inputs, Targets
from drivetrain.data.stateless_random import Ids
from drivetrain.data.streaming import open_stream
from drivetrain.data.streaming.reader import ShardReader
from drivetrain.data.text.encoded import pad_inputs
from drivetrain.data.text.text_shards import TokenRows

TITLE_CHARACTERS = 80
"""Characters of a text that its title shows."""


@dataclass
class StreamedTexts:
    """Rows of remote shards, tokenized when their shard is fetched."""

    masked: ClassVar = True
    """The last input is a mask of real tokens (protocol `Masked`)."""
    reader: ShardReader
    rows: Ids
    """Rows of the index of the shards."""
    targets: Targets
    lengths: npt.NDArray[np.int64]
    """Tokens of each text, estimated from its bytes; at most `max_length`."""

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def token_rows(self) -> TokenRows:
        """The form in which the cache stores the texts."""
        assert isinstance(self.reader.rows, TokenRows)
        return self.reader.rows

    def gather(self, ids: Ids) -> Inputs:
        """Token ids, token types if the network has them, and attention mask, as from `encoded.pad_inputs`.

        Raises:
            DataError: if a shard has changed.
            StorageError: if a shard cannot be fetched.
        """
        tokens, *types = self.token_rows.to_ragged(self.reader.read(self.rows[ids]))
        return pad_inputs(tokens, types, np.arange(len(ids), dtype=np.int64), self.token_rows.encoding.tokenizer.pad)

    def title(self, index: int) -> str:
        """Shard, number and first words of a text, as the tokenizer reads it."""
        row = self.rows[index : index + 1]
        tokens = self.token_rows.to_ragged(self.reader.read(row))[0]
        text = self.token_rows.encoding.tokenizer.inner.decode(tokens.flat.tolist())
        ellipsis = "…" if len(text) > TITLE_CHARACTERS else ""
        return f"{self.reader.index.title(int(row[0]))}: {text[:TITLE_CHARACTERS]}{ellipsis}"

    def fetch_ahead(self, groups: Sequence[Ids]) -> AbstractContextManager[Callable[[int], None]]:
        """A context in which the shards of the batches are fetched ahead (protocol `FetchesAhead`)."""
        return open_stream.fetch_groups_ahead(self.reader, [self.rows[ids] for ids in groups])
