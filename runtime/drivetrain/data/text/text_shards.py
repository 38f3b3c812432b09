"""Texts in shards: what the index knows of each row, and its tokens as they lie in the cache."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from drivetrain.data.decoded_size import DecodedSize
from drivetrain.data.stateless_random import Ids
from drivetrain.data.streaming import flat_file, parquet_index
from drivetrain.data.streaming import index as indices
from drivetrain.data.streaming.index import SHARD_BYTES, Index
from drivetrain.data.streaming.reader import limit_rows
from drivetrain.data.streaming.shard import Shard
from drivetrain.data.text import shard_texts
from drivetrain.data.text.encoded import Ragged
from drivetrain.data.text.tokenizer import Tokenizer
from drivetrain.job.text import Truncation

if TYPE_CHECKING:
    import pyarrow

SIZE = "\x00size"
"""Column of an index: bytes of all texts of a row; 0 if none of them says anything."""
CONTENT = indices.UNLISTED + "content"
"""Column of an index: 64 bits of a hash of the texts of a row, by which equal ones are found."""
INDEX_BYTES_PER_TEXT = 80
"""Bytes of what the index has of a text, while it is made."""
TOKEN = np.dtype("<i4")
BETWEEN = "\x1f"
"""Between the texts of a row where rows are compared."""


def look(
    file: Path,
    shard: Shard,
    texts: Sequence[str],
    labels: Sequence[str],
    key: str,
    classes: Mapping[str, Sequence[str]] = parquet_index.NONE,
) -> pyarrow.Table:
    """The index of a shard: size and labels of each row. A label that is missing is null.

    Args:
        file: the shard on this machine.
        shard: for messages.
        texts: the text columns.
        labels: the label columns.
        key: the spec key that names the shards.
        classes: names of classes that are declared beside the shards.

    Raises:
        DataError: if it cannot be read, lacks a column, or has one that does not hold text.
    """
    from pyarrow import array, int64, uint64

    index_table = shard_texts.labels(file, shard, labels, texts, key, classes)
    sizes, contents = list[int](), list[int]()
    size = DecodedSize(f"the list of the texts of shard {shard.address}", key)
    for part in shard_texts.columns(file, texts, shard, key):
        size.add(INDEX_BYTES_PER_TEXT * len(part))
        sizes += _sizes(part)
        contents += _contents(part)
    unpacked_size = sum(sizes) + flat_file.count_overhead(len(sizes))
    index_table = index_table.append_column(SIZE, array(sizes, int64())).append_column(
        CONTENT, array(contents, uint64())
    )
    return index_table.replace_schema_metadata({SHARD_BYTES: str(unpacked_size)})


def _sizes(part: pyarrow.Table) -> list[int]:
    """Bytes of the texts of each row; 0 if they are empty."""
    from pyarrow import compute

    total, full = np.zeros(len(part), np.int64), np.zeros(len(part), np.bool_)
    for column in part.columns:
        total += compute.binary_length(column).to_numpy()
        full |= compute.not_equal(compute.utf8_trim_whitespace(column), "").to_numpy()
    sizes: list[int] = np.where(full, total, 0).tolist()
    return sizes


def _contents(part: pyarrow.Table) -> list[int]:
    """A number for the texts of each row; equal ones have the same, others almost surely another one."""
    rows = zip(*(column.to_pylist() for column in part.columns), strict=True)
    hashes = (hashlib.blake2b(BETWEEN.join(texts).encode(), digest_size=8).digest() for texts in rows)
    return [int.from_bytes(digest, "little") for digest in hashes]


def note_shared(train: Index, train_rows: Ids, validation: Index, validation_rows: Ids) -> list[str]:
    """A note on texts that are in both parts, which makes validation scores too good.

    Args:
        train: has the training texts.
        train_rows: their rows.
        validation: has the validation texts.
        validation_rows: their rows.
    """
    train_contents, new = (
        index.rows[CONTENT].to_numpy()[rows] for index, rows in ((train, train_rows), (validation, validation_rows))
    )
    twice = int(np.isin(new, train_contents).sum())
    return [f"{twice:,} of {len(validation_rows):,} validation texts are identical to training texts"] if twice else []


@dataclass(frozen=True)
class TokenRows:
    """Texts of a shard, which lie in the cache as their tokens, special tokens included and truncated."""

    columns: tuple[str, ...]
    words: Tokenizer
    longest: int
    side: Truncation
    typed: bool
    """Whether token types are kept behind the tokens."""
    key: str
    """The spec key that names the shards."""
    unpacked: str
    """What is taken out of the shard, as `described`."""

    def write(self, file: Path, shard: Shard, path: Path, room: int) -> None:
        """Tokenize all texts."""
        flat_file.write(path, limit_rows(self._rows(file, shard), room))

    def _rows(self, file: Path, shard: Shard) -> Iterator[bytes]:
        """The tokens of each row."""
        for part in shard_texts.columns(file, self.columns, shard, self.key):
            encoded = self.words.encode(part.columns)
            kinds = [encoded.sequences(self.longest, self.side)]
            kinds += [encoded.types(self.longest, self.side)] if self.typed else []
            flats = [kind.flat.astype(TOKEN) for kind in kinds]
            for start, end in zip(kinds[0].offsets.tolist(), kinds[0].offsets[1:].tolist(), strict=False):
                yield b"".join(flat[start:end].tobytes() for flat in flats)

    def is_whole(self, handle: int, shard: Shard, count: int) -> bool:
        """Whether all texts are there."""
        return flat_file.is_whole(handle, count)

    def read(self, handle: int, rows: Ids, start: int) -> list[bytes]:
        """The tokens of some rows."""
        return flat_file.read(handle, (rows - start).tolist())

    def ragged(self, rows: Sequence[bytes]) -> list[Ragged]:
        """What `read` has given, as tokens and, if there are any, token types."""
        kinds = 1 + self.typed
        numbers = [np.frombuffer(row, TOKEN).reshape(kinds, -1) for row in rows]
        lengths = np.array([row.shape[1] for row in numbers], np.int64)
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        flat = np.concatenate(numbers, axis=1) if numbers else np.zeros((kinds, 0), TOKEN)
        return [Ragged(kind.astype(np.int32), offsets) for kind in flat]


def describe(names: Sequence[str], stored: Mapping[str, object]) -> str:
    """What is taken out of a shard, in words: the same for the same columns and the same preprocessing.

    Args:
        names: the text columns.
        stored: the preprocessing.
    """
    relevant = {key: stored.get(key) for key in ("tokenizer", "max_length", "truncation", "token_types")}
    digest = hashlib.sha256(json.dumps([list(names), relevant], sort_keys=True).encode()).hexdigest()
    return f"tokens of {', '.join(names)} {digest[:16]}"
