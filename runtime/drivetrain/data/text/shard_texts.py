"""Reads text and label columns of a shard, whatever its kind: Parquet, JSON lines, or a tar file."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drivetrain.data.decoded_size import DecodedSize
from drivetrain.data.formats import column_values, parquet_file, table_file
from drivetrain.data.formats import shards as tables
from drivetrain.data.formats.parquet_file import decode
from drivetrain.data.streaming import jsonl_records, parquet_index, tar_records
from drivetrain.data.streaming.shard import PARQUET, TAR, Shard
from drivetrain.data.text import tokenizer
from drivetrain.errors import DataError

if TYPE_CHECKING:
    import pyarrow

CELL_BYTES = 8
"""Bytes of memory that a list takes for each of its items."""


def read_labels(
    file: Path,
    shard: Shard,
    names: Sequence[str],
    texts: Sequence[str],
    key: str,
    classes: Mapping[str, Sequence[str]] = parquet_index.NONE,
) -> pyarrow.Table:
    """Read the label columns of a shard as text, without space around it; an empty label is null.

    Args:
        classes: names of classes that are declared beside the shards, for labels that are numbers.

    Raises:
        DataError: if the shard cannot be read, lacks a column, or has one that does not hold text.
    """
    from pyarrow import ArrowException

    try:
        label_table = (_read_parquet_labels if shard.kind == PARQUET else _read_record_labels)(
            file, shard, names, texts, key
        )
        label_table = table_file.as_text(tables.with_names(label_table, classes), names)
        label_table.validate(full=True)
    except (ArrowException, OSError) as error:
        raise parquet_index.unreadable(shard, key, error) from None
    for position, name in enumerate(label_table.column_names):
        _check_text(label_table.field(position).type, name, shard, key)
        label_table = label_table.set_column(position, name, column_values.texts(label_table[name]))
    return label_table


def read_texts(file: Path, names: Sequence[str], shard: Shard, key: str) -> Iterator[pyarrow.Table]:
    """Yield the text columns of a shard, at most TEXTS_PER_CALL rows at a time; an empty text is "".

    Raises:
        DataError: if the shard cannot be read, or a column does not hold text.
    """
    from pyarrow import ArrowException, Table, compute, table

    if shard.kind != PARQUET:
        records = _read_records(file, shard, names, (), key)
        while chunk := list(islice(records, tokenizer.TEXTS_PER_CALL)):
            by_name = {name: _to_text_array([record.get(name) for record in chunk], name, shard, key) for name in names}
            yield table(
                {name: compute.fill_null(column_values.compose_text(cells), "") for name, cells in by_name.items()}
            )
        return
    subject = f"shard {shard.address}"
    try:
        for batch in parquet_file.read_batches(file, names, tokenizer.TEXTS_PER_CALL, subject, key):
            part = table_file.as_text(decode(Table.from_batches([batch]), subject, key), names)
            for name in names:
                _check_text(part.schema.field(name).type, name, shard, key)
            part.validate(full=True)
            texts = {name: compute.fill_null(part[name], "").cast("string") for name in names}
            yield table({name: column_values.compose_text(cells) for name, cells in texts.items()})
    except (ArrowException, OSError) as error:
        raise parquet_index.unreadable(shard, key, error) from None


def read_all_texts(file: Path, shard: Shard, names: Sequence[str], key: str) -> pyarrow.Table:
    """Read all texts of a shard into memory; an empty text is "".

    Raises:
        DataError: if the shard cannot be read, or a column does not hold text.
    """
    from pyarrow import Table, concat_tables

    size, parts = DecodedSize(f"shard {shard.address}", key), list[Table]()
    for part in read_texts(file, names, shard, key):
        size.add(part.nbytes)
        parts.append(part)
    return concat_tables(parts)


def _read_parquet_labels(
    file: Path, shard: Shard, names: Sequence[str], texts: Sequence[str], key: str
) -> pyarrow.Table:
    """Read the label columns `names` of a Parquet file, once it has all columns."""
    from pyarrow import parquet

    parquet_index.check_columns([*texts, *names], parquet.read_schema(file).names, shard, key)
    return parquet_index.labels(file, names, shard, key)


def _read_record_labels(
    file: Path, shard: Shard, names: Sequence[str], texts: Sequence[str], key: str
) -> pyarrow.Table:
    """Read the label columns `names` of JSON lines or of a tar file; each column must occur in chunk record."""
    from pyarrow import table

    by_name: dict[str, list[Any]] = {name: [] for name in names}
    record_keys: dict[str, None] = {}
    size = DecodedSize(f"labels of shard {shard.address}", key)
    for record in _read_records(file, shard, texts, names, key):
        record_keys |= dict.fromkeys(record)
        for name, cells in by_name.items():
            cells.append(record.get(name))
            size.add(CELL_BYTES + sys.getsizeof(cells[-1]))
    parquet_index.check_columns([*texts, *names], list(record_keys), shard, key)
    return table({name: _to_text_array(cells, name, shard, key) for name, cells in by_name.items()})


def _read_records(
    file: Path, shard: Shard, texts: Sequence[str], names: Sequence[str], key: str
) -> Iterator[dict[str, Any]]:
    if shard.kind == TAR:
        return tar_records.read(file, shard, key, texts, names)
    return jsonl_records.read(file, shard, key)


def _to_text_array(cells: Sequence[Any], name: str, shard: Shard, key: str) -> pyarrow.Array:
    """JSON values as text, by the rule for tables: whole numbers and booleans count as text, other types are refused."""
    from pyarrow import array, string

    cell_types = {type(cell) for cell in cells} - {type(None)}
    if wrong_type := next((kind for kind in (float, list, dict) if kind in cell_types), None):
        raise _refuse_column({float: "numbers", list: "lists", dict: "objects"}[wrong_type], name, shard, key)
    if len(cell_types) > 1:
        raise _refuse_column("cells of several types", name, shard, key)
    try:
        return array([_to_text(cell) for cell in cells], string())
    except UnicodeEncodeError:
        raise DataError(
            f'{key}: column "{name}" of shard {shard.address} has half of a surrogate pair (\\uD800 to \\uDFFF)',
            "text that can be written as UTF-8",
            "write it again without",
        ) from None


def _to_text(cell: Any) -> str | None:
    """A cell as text; booleans in lower case, as in JSON."""
    if cell is None:
        return None
    return str(cell).lower() if isinstance(cell, bool) else str(cell)


def _check_text(data_type: pyarrow.DataType, name: str, shard: Shard, key: str) -> None:
    if column_values.kind_of(data_type) != "text":
        raise _refuse_column(str(data_type), name, shard, key)


def _refuse_column(contents: str, name: str, shard: Shard, key: str) -> DataError:
    """The error for a column that holds `contents` (say, "numbers") instead of text."""
    return DataError(
        f'{key}: column "{name}" of shard {shard.address} holds {contents}, not text',
        "text, whole numbers or booleans",
        "write the column as text, or name another one",
    )
