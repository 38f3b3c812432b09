"""Reads Parquet files: typed columns, in batches of rows that fit into memory.

A column may store a text of megabytes once and refer to it from a million rows (a dictionary). Such a column is read
as a dictionary, and the size of its texts is checked before each row gets its own copy. Structs, lists and bytes that
rows share are read twice: as dictionaries, to count what all copies take, and then as values.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow
from pyarrow import (
    ArrowInvalid,
    RecordBatch,
    Table,
    binary,
    chunked_array,
    compute,
    concat_tables,
    parquet,
    string,
    types,
)

from drivetrain.data import decoded_size
from drivetrain.data.formats import shards
from drivetrain.errors import DataError

MAX_CHUNK_BYTES = 1 << 30
"""Largest number of bytes of text that are decoded or converted at once: Arrow's offsets end at two gigabytes."""
MEMORY_PARTS = 16
"""Divisor of the free memory that gives the largest size of a batch of rows."""
MAX_BATCH_ROWS = 1 << 20
"""Largest number of rows in a batch, for a table that is read completely."""
_KINDS_OF_TEXT = {"string", "large_string", "string_view"}
_OPAQUE = {"extension", "list_view", "large_list_view"}
"""Types whose dictionaries Arrow cannot read."""
_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "FLOAT": 4, "INT64": 8, "DOUBLE": 8, "INT96": 8}


class ParquetReader:
    """Reader of one file, or of all files of a table in several files."""

    def __init__(self, path: Path, key: str) -> None:
        self.path, self.key = path, key
        self.files = shards.files(path, key)

    def names(self) -> list[str]:
        """Return the column names."""
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
        """Read these columns, with values for dictionary columns and names for class numbers."""
        return concat_tables([self._read(path, columns) for path in self.files], promote_options="default")

    def head(self, rows: int) -> tuple[pyarrow.Table, int]:
        """Read the first rows; also returns the number of all rows."""
        count = sum(parquet.read_metadata(path).num_rows for path in self.files)
        return self._read(self.path, self.names(), rows), count

    def _read(self, path: Path, columns: Sequence[str], rows: int | None = None) -> pyarrow.Table:
        table = read_table(path, columns, str(path), self.key, rows)
        return shards.class_names(decode(table, str(path), self.key))


def decode(table: pyarrow.Table, subject: str, key: str) -> pyarrow.Table:
    """Replace dictionary columns with their values, and convert all text to one type.

    Writers use string, large_string (pandas 3, polars) and string_view for the same text, and not every computation
    knows all of them.

    Raises:
        DataError: if the values do not fit into memory.
    """
    for index, field in enumerate(table.schema):
        column = table[field.name]
        if types.is_dictionary(column.type):
            decoded_size.check_fits(sum(map(_count_bytes, column.chunks)), f'column "{field.name}" of {subject}', key)
            parts = [_take_values(part) for chunk in column.chunks for part in _cut(chunk, MAX_CHUNK_BYTES)]
            column = chunked_array(parts) if parts else column.cast(column.type.value_type)
        elif types.is_run_end_encoded(column.type):
            column = compute.run_end_decode(column)
        if types.is_large_string(column.type) or types.is_string_view(column.type):
            column = _cast_to_string(column)
        column = column.cast(_replace_views(column.type))
        if column.type != field.type:
            table = table.set_column(index, field.name, column)
    return table


def _replace_views(kind: pyarrow.DataType) -> pyarrow.DataType:
    """Return a type with plain texts and bytes in place of views, also inside structs and lists."""
    if types.is_struct(kind):
        return pyarrow.struct([field.with_type(_replace_views(field.type)) for field in kind.fields])
    if types.is_list(kind):
        return pyarrow.list_(kind.value_field.with_type(_replace_views(kind.value_type)))
    return string() if types.is_string_view(kind) else binary() if types.is_binary_view(kind) else kind


def _take_values(chunk: pyarrow.DictionaryArray) -> pyarrow.Array:
    values = chunk.dictionary
    # Views cannot be taken from a dictionary.
    return (values.cast(string()) if types.is_string_view(values.type) else values).take(chunk.indices)


def _cast_to_string(column: pyarrow.ChunkedArray) -> pyarrow.ChunkedArray:
    """Convert text of any type to `string`, whose chunks hold two gigabytes at most."""
    parts = [part.cast(string()) for chunk in column.chunks for part in _cut(chunk, MAX_CHUNK_BYTES)]
    return chunked_array(parts, string())


def _count_bytes(array: Any) -> int:
    """Count the bytes of an array once its dictionaries, also in structs and lists, are replaced with their values."""
    if "dictionary<" not in str(array.type):
        return int(array.nbytes)
    if types.is_struct(array.type):
        return sum(map(_count_bytes, array.flatten()))
    if types.is_map(array.type):
        first, end = array.offsets[0].as_py(), array.offsets[-1].as_py()
        return 4 * len(array) + _count_bytes(array.values.slice(first, end - first))
    if types.is_nested(array.type):
        return 4 * len(array) + _count_bytes(array.flatten())
    values = array.dictionary
    if not (types.is_string(values.type) or types.is_binary(values.type) or types.is_string_view(values.type)):
        # Each value is assumed to take the mean, such as numbers do.
        return len(array) * -(-int(values.nbytes) // max(1, len(values)))
    lengths = compute.binary_length(values.cast(string()) if types.is_string_view(values.type) else values)
    return 4 * len(array) + int(compute.sum(lengths.take(array.indices).cast("int64")).as_py() or 0)


def _cut(array: Any, limit: int) -> list[Any]:
    """Return the rows of an array in slices whose values take at most `limit` bytes, or one row."""
    if len(array) < 2 or _count_bytes(array) <= limit:
        return [array]
    half = len(array) // 2
    return _cut(array.slice(0, half), limit) + _cut(array.slice(half), limit)


def read_table(source: Path, columns: Sequence[str], subject: str, key: str, rows: int | None = None) -> Any:
    """Read all rows of a file, or the first `rows`, as a pyarrow.Table with these columns.

    Raises:
        DataError: if they do not fit into memory.
        pyarrow.ArrowException, OSError: if the file cannot be read.
    """
    with parquet.ParquetFile(source) as opened:
        metadata, schema = opened.metadata, opened.schema_arrow
    if missing := sorted(set(columns) - set(schema.names)):
        raise ArrowInvalid(f'{subject} has no column "{missing[0]}"')
    # Parts that grow while they are decoded take memory next to the finished ones.
    limit = decoded_size.free_memory() * 3 // 4
    chunks = list(_iterate_chunks(opened, columns))
    declared = sum(chunk.size for chunk in chunks)
    if rows is None:
        decoded_size.check_fits(declared, subject, key)
    part_limit = min(limit // MEMORY_PARTS, MAX_CHUNK_BYTES)
    row_bytes = max([1 + declared // max(1, metadata.num_rows), *(chunk.longest for chunk in chunks)])
    batch_rows = max(1, min(part_limit // row_bytes, rows or MAX_BATCH_ROWS, MAX_BATCH_ROWS))
    # A text that many rows share is read once; its size is checked before each row gets its own copy.
    shared = {chunk.path: chunk.column for chunk in chunks if chunk.is_shared}
    texts = [name for name in columns if name in shared and _KINDS_OF_TEXT & {str(schema.field(name).type)}]
    others = sorted({*shared.values()} - {*texts})
    counted = decoded_size.DecodedSize(subject, key, limit)
    for batch in _iterate_batches(source, others, sorted(shared), batch_rows, rows) if others else ():
        counted.add(sum(map(_count_bytes, batch.columns)))
    # The declared sizes may be wrong, so the decoded batches are counted, too.
    size, parts = decoded_size.DecodedSize(subject, key, limit), []
    for batch in _iterate_batches(source, columns, texts, batch_rows, rows):
        size.add(sum(map(_count_bytes, batch.columns)))
        parts.append(batch)
    kinds = pyarrow.schema([schema.field(name) for name in columns])
    table = Table.from_batches(parts, parts[0].schema if parts else kinds)
    return table.slice(0, rows).replace_schema_metadata(schema.metadata)


def _iterate_batches(
    source: Path, columns: Sequence[str], dictionaries: Sequence[str], batch_rows: int, rows: int | None
) -> Iterator[RecordBatch]:
    """Yield batches of these columns until they have `rows` rows; the paths in `dictionaries` are read as dictionaries."""
    count = 0
    with parquet.ParquetFile(source, read_dictionary=dictionaries) as file:
        # Arrow cannot join the dictionaries of two row groups within a struct.
        for group in range(file.num_row_groups):
            for batch in file.iter_batches(batch_rows, row_groups=[group], columns=list(columns)):
                yield batch.select(list(columns))
                count += len(batch)
                if rows is not None and count >= rows:
                    return


@dataclass(frozen=True)
class _Chunk:
    """A part of a column, or of a field of it, as described by the metadata of the file."""

    column: str
    path: str
    """Path of the column, with dots before the fields of a struct."""
    size: int
    """Number of bytes of its values, if none is shared."""
    longest: int
    """Number of bytes that one row may take; 0 if the mean tells it."""
    is_shared: bool
    """Whether texts are written once, and rows refer to them."""


def _iterate_chunks(opened: Any, columns: Sequence[str]) -> Iterator[_Chunk]:
    """Yield all parts of these columns, including the fields of structs."""
    kinds = {field.name: str(field.type) for field in opened.schema_arrow}
    groups = [opened.metadata.row_group(number) for number in range(opened.num_row_groups)]
    for part, leaf in (
        (group.column(at), opened.schema.column(at)) for group in groups for at in range(group.num_columns)
    ):
        path, packed = part.path_in_schema, part.total_uncompressed_size
        for column in {path, path.partition(".")[0]} & {*columns}:
            # Equal numbers are stored in fewer bytes than they take.
            width = leaf.length if part.physical_type == "FIXED_LEN_BYTE_ARRAY" else _WIDTHS.get(part.physical_type, 4)
            is_text, encodings = part.physical_type == "BYTE_ARRAY", " ".join(part.encodings)
            # A text may be as long as all: if it refers to the one before, or if Arrow cannot read its dictionary.
            is_opaque = is_text and ("DELTA_BYTE" in encodings or bool(_OPAQUE & {*re.findall(r"\w+", kinds[column])}))
            longest, values = packed * is_opaque, part.num_values
            # One row may have all values of a list.
            size = max(packed, values * (longest if leaf.max_repetition_level and is_opaque else width))
            yield _Chunk(column, path, size, longest, is_text and not is_opaque and "DICTIONARY" in encodings)
