"""Reads Parquet files: typed columns, some rows at a time, so many that they fit into memory.

A column may write a text of megabytes once and refer to it from a million rows (a dictionary), or from each text to the one
before it. So the rows that are decoded at once are as many as would fit if each had the longest text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow
from pyarrow import ArrowInvalid, Table, chunked_array, compute, concat_tables, parquet, string, types

from drivetrain.data import decoded_size
from drivetrain.data.decoded_size import DecodedSize
from drivetrain.data.formats import shards
from drivetrain.errors import DataError

MAX_CHUNK_BYTES = 1 << 30
"""Most bytes of text in a chunk that is converted at once."""
MEMORY_PARTS = 16
"""A batch of rows takes at most the memory divided by this."""
MAX_BATCH_ROWS = 1 << 20
"""Most rows of a batch, for a table that is read as a whole."""
FIRST_ROWS = 64
"""Number of rows in which the first text of a column is looked for."""
MAX_PACKING = 1000
"""Largest ratio of the content of texts or images to their compressed page that can occur."""
_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "FLOAT": 4, "INT64": 8, "DOUBLE": 8, "INT96": 8}


class ParquetReader:
    """Reads one file, or all files of a table in several."""

    def __init__(self, path: Path, key: str) -> None:
        self.path, self.key = path, key
        self.files = shards.files(path, key)

    def names(self) -> list[str]:
        """The column names."""
        try:
            return list(parquet.read_schema(self.path).names)
        except ArrowInvalid as error:
            if "magic bytes" in str(error):
                raise DataError(
                    f"{self.key}: {self.path} is not a Parquet file, or is incomplete",
                    "a complete Parquet file",
                    "copy or write it again",
                ) from None
            raise

    def read(self, columns: Sequence[str], text: Sequence[str]) -> pyarrow.Table:
        """Read these columns; dictionary columns as their values, classes by their names."""
        return concat_tables([self._read(path, columns) for path in self.files], promote_options="default")

    def head(self, rows: int) -> tuple[pyarrow.Table, int]:
        """The first rows, and the number of all rows."""
        count = sum(parquet.read_metadata(path).num_rows for path in self.files)
        return self._read(self.path, self.names(), rows), count

    def _read(self, path: Path, columns: Sequence[str], rows: int | None = None) -> pyarrow.Table:
        table = read_table(path, columns, str(path), self.key, rows)
        return shards.class_names(decode(table, str(path), self.key))


def decode(table: pyarrow.Table, subject: str, key: str) -> pyarrow.Table:
    """Replace dictionary columns by their values, and convert all text to one type.

    Writers use string, large_string (pandas 3, polars) and string_view for the same text, and not every computation
    knows all of them.

    Raises:
        DataError: if the values do not fit into memory.
    """
    for index, field in enumerate(table.schema):
        column = table[field.name]
        if types.is_dictionary(column.type):
            decoded_size.check_fits(_count_value_bytes(column), f'column "{field.name}" of {subject}', key)
            chunks = [_take_values(chunk) for chunk in column.chunks]
            column = chunked_array(chunks) if chunks else column.cast(column.type.value_type)
        elif types.is_run_end_encoded(column.type):
            column = compute.run_end_decode(column)
        if types.is_large_string(column.type) or types.is_string_view(column.type):
            column = _cast_to_string(column)
        if column.type != field.type:
            table = table.set_column(index, field.name, column)
    return table


def _take_values(chunk: pyarrow.DictionaryArray) -> pyarrow.Array:
    values = chunk.dictionary
    # Views cannot be taken from a dictionary.
    return (values.cast(string()) if types.is_string_view(values.type) else values).take(chunk.indices)


def _cast_to_string(column: pyarrow.ChunkedArray) -> pyarrow.ChunkedArray:
    """Text of any type as `string`, whose chunks hold two gigabytes at most."""
    chunks = list(column.chunks)
    small = []
    while chunks:
        chunk = chunks.pop()
        if chunk.nbytes > MAX_CHUNK_BYTES and len(chunk) > 1:
            half = len(chunk) // 2
            chunks += [chunk.slice(0, half), chunk.slice(half)]
        else:
            small.append(chunk.cast(string()))
    return chunked_array(reversed(small), string())


def _count_value_bytes(column: pyarrow.ChunkedArray) -> int:
    size, kind = 0, column.type.value_type
    for chunk in column.chunks:
        if types.is_primitive(kind) or types.is_fixed_size_binary(kind):
            size += len(chunk) * max(1, kind.bit_width // 8)
        elif types.is_nested(kind):
            # Rare: each is taken for as long as all of them.
            size += len(chunk) * int(chunk.dictionary.nbytes)
        else:
            values = chunk.dictionary.cast("string") if types.is_string_view(kind) else chunk.dictionary
            lengths = compute.binary_length(values).take(chunk.indices)
            size += 4 * len(chunk) + int(compute.sum(lengths).as_py() or 0)
    return size


@dataclass(frozen=True)
class _Chunk:
    """One column of a row group, as its metadata describe it."""

    path: str
    """Path of the column, with dots before the fields of a struct."""
    values: int
    """Number of values."""
    unpacked: int
    """Bytes of its pages without compression."""
    packed: int
    """Bytes in the file."""
    width: int
    """Bytes of a value; 0 if they differ."""
    encodings: tuple[str, ...]
    repeated: bool
    """Whether a row has a list of values."""

    @property
    def average(self) -> int:
        """Bytes of a value, if each is written in full."""
        return self.unpacked // max(1, self.values) + 4

    @property
    def has_dictionary(self) -> bool:
        """Whether values are written once, and rows refer to them."""
        return any("DICTIONARY" in encoding for encoding in self.encodings)


def read_table(source: Path, columns: Sequence[str], subject: str, key: str, rows: int | None = None) -> Any:
    """Read all rows of a file, or the first `rows`, as a pyarrow.Table with these columns.

    Raises:
        DataError: if they do not fit into memory.
        pyarrow.ArrowException, OSError: if the file cannot be read.
    """
    with parquet.ParquetFile(source) as opened:
        schema = opened.schema_arrow
        # Parts that grow while they are decoded take memory beside those that are done.
        limit = decoded_size.free_memory() * 3 // 4
        if rows is None:
            declared = DecodedSize(subject, key, limit)
            for group in range(opened.num_row_groups):
                for chunk in _iterate_chunks(opened, group, columns):
                    declared.add(_count_bytes(opened, source, group, chunk, limit))
    if missing := sorted(set(columns) - set(schema.names)):
        raise ArrowInvalid(f'{subject} has no column "{missing[0]}"')
    # What is declared may be wrong, so the decoded batches are counted, too.
    size = DecodedSize(subject, key, limit)
    parts: list[Any] = []
    count = 0
    for batch in read_batches(source, columns, rows or MAX_BATCH_ROWS, subject, key):
        size.add(batch.nbytes)
        parts.append(batch.select(list(columns)))
        count += len(batch)
        if rows is not None and count >= rows:
            break
    if not parts:
        return schema.empty_table().select(list(columns))
    table = Table.from_batches(parts).replace_schema_metadata(schema.metadata)
    return table if rows is None else table.slice(0, rows)


def read_batches(
    source: Path, columns: Sequence[str], most: int, subject: str, key: str
) -> Iterator[pyarrow.RecordBatch]:
    """Yield the rows of a file, at most `most` at a time.

    Raises:
        DataError: if the lists of a column, or one of its pages, do not fit into memory.
        pyarrow.ArrowException, OSError: if the file cannot be read.
    """
    with parquet.ParquetFile(source) as opened:
        for group in range(opened.num_row_groups):
            limit = decoded_size.free_memory()
            # Bytes of a row at most.
            width = 1
            for chunk in _iterate_chunks(opened, group, columns):
                size = DecodedSize(f'column "{chunk.path}" of {subject}', key, limit)
                if chunk.repeated:
                    # Any one row may have all values.
                    size.add(chunk.values * (chunk.width or 4))
                longest = _estimate_longest_value(opened, source, group, chunk, limit)
                if chunk.repeated:
                    size.add(chunk.values * longest)
                else:
                    width += longest
                    # A page is unpacked whole.
                    size.add(chunk.unpacked if chunk.unpacked > MAX_PACKING * chunk.packed else 0)
            yield from opened.iter_batches(
                max(1, min(most, limit // MEMORY_PARTS // width)), row_groups=[group], columns=list(columns)
            )


def _iterate_chunks(opened: Any, group: int, columns: Sequence[str]) -> Iterator[_Chunk]:
    """Yield the parts of a row group that belong to these columns."""
    row_group = opened.metadata.row_group(group)
    for index in range(row_group.num_columns):
        part, column = row_group.column(index), opened.schema.column(index)
        path = str(part.path_in_schema)
        if any(path == name or path.startswith(f"{name}.") for name in columns):
            fixed = column.length if part.physical_type == "FIXED_LEN_BYTE_ARRAY" else 0
            yield _Chunk(
                path,
                int(part.num_values),
                int(part.total_uncompressed_size),
                int(part.total_compressed_size),
                int(_WIDTHS.get(part.physical_type, fixed)),
                tuple(map(str, part.encodings)),
                column.max_repetition_level > 0,
            )


def _count_bytes(opened: Any, source: Path, group: int, chunk: _Chunk, limit: int) -> int:
    """Bytes of a column of a row group; those of a text that many rows share for each of them, if they may be many."""
    declared = max(chunk.values * chunk.width, chunk.unpacked)
    if chunk.width or declared > limit or not chunk.has_dictionary:
        return declared
    # Few rows need no count, even if each had the longest text.
    if chunk.values * max(4, _estimate_longest_value(opened, source, group, chunk, limit)) <= limit // MEMORY_PARTS:
        return declared
    size = 0
    rows = max(1, min(MAX_BATCH_ROWS, limit // MEMORY_PARTS // chunk.average))
    for arrays in _read_dictionaries(opened, source, group, chunk, rows):
        for array in arrays:
            lengths = compute.binary_length(array.dictionary).take(array.indices)
            size += int(compute.sum(lengths.cast("int64")).as_py() or 0)
        if size > limit:
            break
    return max(size, declared)


def _estimate_longest_value(opened: Any, source: Path, group: int, chunk: _Chunk, limit: int) -> int:
    """Bytes that a value of a column takes at most, or on average if each is written in full."""
    if chunk.width:
        return chunk.width
    if chunk.unpacked * chunk.values <= limit // MEMORY_PARTS or "DELTA_BYTE_ARRAY" in chunk.encodings:
        return chunk.unpacked
    if not chunk.has_dictionary:
        return chunk.average
    for arrays in _read_dictionaries(opened, source, group, chunk, FIRST_ROWS):
        dictionaries = [array.dictionary for array in arrays if len(array.dictionary)]
        if longest := [compute.max(compute.binary_length(values)).as_py() for values in dictionaries]:
            return chunk.average + max(length or 0 for length in longest)
    return chunk.average


def _read_dictionaries(opened: Any, source: Path, group: int, chunk: _Chunk, rows: int) -> Iterator[list[Any]]:
    """Yield the arrays with a dictionary of a column of a row group, for `rows` rows at a time."""
    with parquet.ParquetFile(source, metadata=opened.metadata, read_dictionary=[chunk.path]) as file:
        for batch in file.iter_batches(rows, row_groups=[group], columns=[chunk.path]):
            yield [array for column in batch.columns for array in _iterate_dictionaries(column)]


def _iterate_dictionaries(array: Any) -> Iterator[Any]:
    """Yield the arrays with a dictionary inside of an array of structs and lists."""
    if types.is_dictionary(array.type):
        yield array
    elif types.is_struct(array.type):
        for index in range(array.type.num_fields):
            yield from _iterate_dictionaries(array.field(index))
    elif types.is_nested(array.type):
        yield from _iterate_dictionaries(array.values)
