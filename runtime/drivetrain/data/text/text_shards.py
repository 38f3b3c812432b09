"""Reads shards of texts: what the index stores of them, and their tokens, which the cache stores."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow
from pyarrow import Table, array, compute, concat_tables, int64, parquet, string, table, uint64

from drivetrain.data.decoded_size import DecodedSize
from drivetrain.data.formats import column_values, jsonl_file, parquet_file, table_file
from drivetrain.data.formats import shards as tables
from drivetrain.data.stateless_random import Ids
from drivetrain.data.streaming import index as indices
from drivetrain.data.streaming import tar_file
from drivetrain.data.streaming.index import SHARD_BYTES, Index
from drivetrain.data.streaming.reader import FlatRows, count_overhead
from drivetrain.data.streaming.shard import PARQUET, TAR, Shard
from drivetrain.data.text import corpus, tokenizer
from drivetrain.data.text.encoded import Ragged
from drivetrain.data.text.job_tokenizer import TextEncoding
from drivetrain.errors import DataError

CELL_BYTES = 8
"""Bytes of memory that a list takes for each of its items."""
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
    classes: Mapping[str, Sequence[str]],
) -> pyarrow.Table:
    """The index of a shard: labels, size and content hash of each row. A missing label is null.

    Args:
        classes: class names of each label column whose labels are numbers, declared beside the shards.

    Raises:
        DataError: if the shard cannot be read, lacks a column, or has one that does not hold text.
    """
    index_table = _read_labels(file, shard, labels, texts, key, classes)
    sizes, contents = list[int](), list[int]()
    size = DecodedSize(f"the list of the texts of shard {shard.address}", key)
    for part in read_texts(file, texts, shard, key):
        size.add(INDEX_BYTES_PER_TEXT * len(part))
        sizes += _measure_texts(part)
        contents += _hash_texts(part)
    unpacked_size = sum(sizes) + count_overhead(len(sizes))
    index_table = index_table.append_column(SIZE, array(sizes, int64())).append_column(
        CONTENT, array(contents, uint64())
    )
    return index_table.replace_schema_metadata({SHARD_BYTES: str(unpacked_size)})


def _measure_texts(part: pyarrow.Table) -> list[int]:
    """Bytes of the texts of each row; 0 if all of them are blank."""
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
    train_contents = train.rows[CONTENT].to_numpy()[train_rows]
    return int(np.isin(validation.rows[CONTENT].to_numpy()[validation_rows], train_contents).sum())


@dataclass(frozen=True)
class TokenRows(FlatRows):
    """The form of a shard's texts in the cache: truncated rows of tokens and token types, special tokens included."""

    columns: tuple[str, ...]
    """The text columns."""
    encoding: TextEncoding
    key: str
    """The spec key that names the shards."""
    unpacked: str
    """Name of this form in the cache, from `describe`: rows that are tokenized alike share it."""

    def unpack(self, file: Path, shard: Shard) -> Iterator[bytes]:
        """Yield the bytes of each row: its tokens, then its token types if the network has them."""
        for part in read_texts(file, self.columns, shard, self.key):
            sequences = self.encoding.list_sequences(self.encoding.tokenizer.encode(part.columns))
            flats = [rows.flat.astype(TOKEN) for rows in sequences]
            for start, end in pairwise(sequences[0].offsets.tolist()):
                yield b"".join(flat[start:end].tobytes() for flat in flats)

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


def _read_labels(
    file: Path, shard: Shard, names: Sequence[str], texts: Sequence[str], key: str, classes: Mapping[str, Sequence[str]]
) -> pyarrow.Table:
    """Read the label columns `names` of a shard as text, without space around it; an empty label is null."""
    with indices.blame_shard(shard, key):
        if shard.kind == PARQUET:
            indices.check_columns([*texts, *names], parquet.read_schema(file).names, shard, key)
            label_table = indices.read_columns(file, names, shard, key)
        else:
            label_table = _read_record_labels(file, shard, names, texts, key)
        label_table = table_file.as_text(tables.with_names(label_table, classes), names)
        label_table.validate(full=True)
    for position, name in enumerate(label_table.column_names):
        _check_text(label_table.field(position).type, name, shard, key)
        label_table = label_table.set_column(position, name, column_values.texts(label_table[name]))
    return label_table


def read_texts(file: Path, names: Sequence[str], shard: Shard, key: str) -> Iterator[pyarrow.Table]:
    """Yield the text columns of a shard, at most TEXTS_PER_CALL rows at a time; an empty text is "".

    Raises:
        DataError: if the shard cannot be read, or a column does not hold text.
    """
    if shard.kind != PARQUET:
        records = _read_records(file, shard, names, (), key)
        while chunk := list(islice(records, tokenizer.TEXTS_PER_CALL)):
            by_name = {name: _to_text_array([record.get(name) for record in chunk], name, shard, key) for name in names}
            yield table(
                {name: compute.fill_null(column_values.compose_text(cells), "") for name, cells in by_name.items()}
            )
        return
    subject = f"shard {shard.address}"
    with indices.blame_shard(shard, key):
        for batch in parquet_file.read_batches(file, names, tokenizer.TEXTS_PER_CALL, subject, key):
            part = table_file.as_text(parquet_file.decode(Table.from_batches([batch]), subject, key), names)
            for name in names:
                _check_text(part.schema.field(name).type, name, shard, key)
            part.validate(full=True)
            texts = {name: compute.fill_null(part[name], "").cast("string") for name in names}
            yield table({name: column_values.compose_text(cells) for name, cells in texts.items()})


def read_all_texts(file: Path, shard: Shard, names: Sequence[str], key: str) -> pyarrow.Table:
    """Read all texts of a shard into memory; an empty text is "".

    Raises:
        DataError: if the shard cannot be read, or a column does not hold text.
    """
    size, parts = DecodedSize(f"shard {shard.address}", key), list[Table]()
    for part in read_texts(file, names, shard, key):
        size.add(part.nbytes)
        parts.append(part)
    return concat_tables(parts)


def _read_record_labels(
    file: Path, shard: Shard, names: Sequence[str], texts: Sequence[str], key: str
) -> pyarrow.Table:
    """Read the label columns `names` of JSON lines or of a tar file; each column must occur in chunk record."""
    by_name: dict[str, list[Any]] = {name: [] for name in names}
    record_keys: dict[str, None] = {}
    size = DecodedSize(f"labels of shard {shard.address}", key)
    for record in _read_records(file, shard, texts, names, key):
        record_keys |= dict.fromkeys(record)
        for name, cells in by_name.items():
            cells.append(record.get(name))
            size.add(CELL_BYTES + sys.getsizeof(cells[-1]))
    indices.check_columns([*texts, *names], list(record_keys), shard, key)
    return table({name: _to_text_array(cells, name, shard, key) for name, cells in by_name.items()})


def _read_records(
    file: Path, shard: Shard, texts: Sequence[str], names: Sequence[str], key: str
) -> Iterator[dict[str, Any]]:
    if shard.kind == TAR:
        return tar_file.read_records(file, shard, key, texts, names)
    return jsonl_file.read_records(file, shard, key)


def _to_text_array(cells: Sequence[Any], name: str, shard: Shard, key: str) -> pyarrow.Array:
    """JSON values as text, by the rule for tables: whole numbers and booleans count as text, other types are refused."""
    cell_types = {type(cell) for cell in cells} - {type(None)}
    if wrong_type := next((kind for kind in (float, list, dict) if kind in cell_types), None):
        raise _refuse_column({float: "numbers", list: "lists", dict: "objects"}[wrong_type], name, shard, key)
    if len(cell_types) > 1:
        raise _refuse_column("cells of several types", name, shard, key)
    try:
        # Booleans in lower case, as in JSON.
        texts = (None if cell is None else str(cell) for cell in cells)
        return array([text.lower() if text and bool in cell_types else text for text in texts], string())
    except UnicodeEncodeError:
        raise DataError(
            f'{key}: column "{name}" of shard {shard.address} has half of a surrogate pair (\\uD800 to \\uDFFF)',
            "text that can be written as UTF-8",
            "write it again without",
        ) from None


def _check_text(data_type: pyarrow.DataType, name: str, shard: Shard, key: str) -> None:
    if column_values.kind_of(data_type) != "text":
        raise _refuse_column(str(data_type), name, shard, key)


def _refuse_column(contents: str, name: str, shard: Shard, key: str) -> DataError:
    """The error for a column that holds `contents` (say, "numbers") instead of text."""
    return corpus.no_text_error(f'{key}: column "{name}" of shard {shard.address}', contents)
