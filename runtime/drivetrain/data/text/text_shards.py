"""Texts in shards: their index (size, content and labels of each row), and their tokens as the cache stores them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from drivetrain.data.decoded_size import DecodedSize
from drivetrain.data.stateless_random import Ids
from drivetrain.data.streaming import flat_file, parquet_index
from drivetrain.data.streaming import index as indices
from drivetrain.data.streaming.index import SHARD_BYTES, Index
from drivetrain.data.streaming.reader import limit_rows
from drivetrain.data.streaming.shard import Shard
from drivetrain.data.text import shard_texts
from drivetrain.data.text.encoded import Ragged
from drivetrain.data.text.job_tokenizer import TextEncoding

if TYPE_CHECKING:
    import pyarrow

SIZE = "\x00size"
"""Column of an index: bytes of all texts of a row; 0 if all of them are blank."""
CONTENT = indices.UNLISTED + "content"
"""Column of an index: 64 bits of a hash of the texts of a row, by which equal texts are found."""
INDEX_BYTES_PER_TEXT = 80
"""Bytes of memory that the index takes for each text while it is built."""
TOKEN = np.dtype("<i4")
"""Type of a token, and of a token type, in the cache."""
SEPARATOR = "\x1f"
"""Stands between the texts of a row where rows are compared."""


def index_shard(
    file: Path,
    shard: Shard,
    texts: Sequence[str],
    labels: Sequence[str],
    key: str,
    classes: Mapping[str, Sequence[str]] = parquet_index.NONE,
) -> pyarrow.Table:
    """The index of a shard: labels, size and content hash of each row. A missing label is null.

    Args:
        classes: class names of each label column whose labels are numbers, declared beside the shards.

    Raises:
        DataError: if the shard cannot be read, lacks a column, or has one that does not hold text.
    """
    from pyarrow import array, int64, uint64

    index_table = shard_texts.read_labels(file, shard, labels, texts, key, classes)
    sizes, contents = list[int](), list[int]()
    size = DecodedSize(f"the list of the texts of shard {shard.address}", key)
    for part in shard_texts.read_texts(file, texts, shard, key):
        size.add(INDEX_BYTES_PER_TEXT * len(part))
        sizes += _measure_texts(part)
        contents += _hash_texts(part)
    unpacked_size = sum(sizes) + flat_file.count_overhead(len(sizes))
    index_table = index_table.append_column(SIZE, array(sizes, int64())).append_column(
        CONTENT, array(contents, uint64())
    )
    return index_table.replace_schema_metadata({SHARD_BYTES: str(unpacked_size)})


def _measure_texts(part: pyarrow.Table) -> list[int]:
    """Bytes of the texts of each row; 0 if all of them are blank."""
    from pyarrow import compute

    total_bytes = np.zeros(len(part), np.int64)
    has_text = np.zeros(len(part), np.bool_)
    for column in part.columns:
        total_bytes += compute.binary_length(column).to_numpy()
        has_text |= compute.not_equal(compute.utf8_trim_whitespace(column), "").to_numpy()
    sizes: list[int] = np.where(has_text, total_bytes, 0).tolist()
    return sizes


def _hash_texts(part: pyarrow.Table) -> list[int]:
    """A hash of 64 bits of the texts of each row."""
    rows = zip(*(column.to_pylist() for column in part.columns), strict=True)
    hashes = (hashlib.blake2b(SEPARATOR.join(texts).encode(), digest_size=8).digest() for texts in rows)
    return [int.from_bytes(digest, "little") for digest in hashes]


def read_sizes(index: Index, rows: Ids) -> npt.NDArray[np.int64]:
    """Bytes of the texts of some rows, as the index has them."""
    sizes: npt.NDArray[np.int64] = index.rows[SIZE].to_numpy()[rows]
    return sizes


def count_shared(train: Index, train_rows: Ids, validation: Index, validation_rows: Ids) -> int:
    """How many of the validation texts are training texts, too, by rows of both indices."""
    return int(
        np.isin(validation.rows[CONTENT].to_numpy()[validation_rows], train.rows[CONTENT].to_numpy()[train_rows]).sum()
    )


@dataclass(frozen=True)
class TokenRows:
    """The form of a shard's texts in the cache: truncated rows of tokens and token types, special tokens included."""

    columns: tuple[str, ...]
    """The text columns."""
    encoding: TextEncoding
    key: str
    """The spec key that names the shards."""
    unpacked: str
    """Name of this form in the cache, from `describe`: rows that are tokenized alike share it."""

    def write(self, file: Path, shard: Shard, path: Path, room: int) -> None:
        """Tokenize all texts of the shard `file`, and write them to `path`, with at most `room` bytes."""
        flat_file.write(path, limit_rows(self._tokenize(file, shard), room))

    def _tokenize(self, file: Path, shard: Shard) -> Iterator[bytes]:
        """Yield the bytes of each row: its tokens, then its token types if the network has them."""
        for part in shard_texts.read_texts(file, self.columns, shard, self.key):
            sequences = self.encoding.list_sequences(self.encoding.tokenizer.encode(part.columns))
            flats = [rows.flat.astype(TOKEN) for rows in sequences]
            for start, end in pairwise(sequences[0].offsets.tolist()):
                yield b"".join(flat[start:end].tobytes() for flat in flats)

    def is_whole(self, handle: int, shard: Shard, count: int) -> bool:
        """Whether the cached file has all `count` texts."""
        return flat_file.is_whole(handle, count)

    def read(self, handle: int, rows: Ids, start: int) -> list[bytes]:
        """The bytes of some rows of the cached file.

        Args:
            start: the row of the index with which the shard begins.
        """
        return flat_file.read(handle, (rows - start).tolist())

    def to_ragged(self, rows: Sequence[bytes]) -> list[Ragged]:
        """The tokens and, if the network has them, the token types of rows that `read` returned."""
        arrays_per_row = 1 + self.encoding.typed
        numbers = [np.frombuffer(row, TOKEN).reshape(arrays_per_row, -1) for row in rows]
        lengths = np.array([row.shape[1] for row in numbers], np.int64)
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        flat = np.concatenate(numbers, axis=1) if numbers else np.zeros((arrays_per_row, 0), TOKEN)
        return [Ragged(values.astype(np.int32), offsets) for values in flat]


def describe(names: Sequence[str], preprocessing: Mapping[str, object]) -> str:
    """The name under which the cache stores tokenized rows: the same for the same columns and preprocessing."""
    relevant = {key: preprocessing.get(key) for key in ("tokenizer", "max_length", "truncation", "token_types")}
    digest = hashlib.sha256(json.dumps([list(names), relevant], sort_keys=True).encode()).hexdigest()
    return f"tokens of {', '.join(names)} {digest[:16]}"
