"""Reads Parquet files: typed columns, in batches of rows, whose sizes are counted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

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

BATCH_ROWS = 1 << 14
"""Number of rows that are read at once: rows can share a long text, which each of them gets."""


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
                    f"{self.path} is not a Parquet file, or is incomplete",
                    "a complete Parquet file",
                    "copy or write it again",
                    key=self.key,
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
        return shards.class_names(read_table(path, columns, self.key, rows))


def decode(table: pyarrow.Table) -> pyarrow.Table:
    """Replace dictionaries with their values, and convert all text to one type, also in structs and lists.

    Writers use string, large_string (pandas 3, polars) and string_view for the same text, and not every computation
    knows all of them.
    """
    for index, field in enumerate(table.schema):
        if (kind := _decoded_type(field.type)) != field.type:
            chunks = [_decode_array(chunk, kind) for chunk in table[field.name].chunks]
            table = table.set_column(index, field.name, chunked_array(chunks, kind))
    return table


def _decoded_type(kind: pyarrow.DataType) -> pyarrow.DataType:
    """Return a type with values in place of dictionaries, and plain texts and bytes in place of views."""
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        return _decoded_type(kind.value_type)
    if types.is_struct(kind):
        return pyarrow.struct([field.with_type(_decoded_type(field.type)) for field in kind.fields])
    if types.is_map(kind):
        return pyarrow.map_(_decoded_type(kind.key_type), _decoded_type(kind.item_type), kind.keys_sorted)
    if types.is_fixed_size_list(kind):
        return pyarrow.list_(kind.value_field.with_type(_decoded_type(kind.value_type)), kind.list_size)
    if types.is_list(kind):
        return pyarrow.list_(kind.value_field.with_type(_decoded_type(kind.value_type)))
    is_text = types.is_string_view(kind) or types.is_large_string(kind)
    return string() if is_text else binary() if types.is_binary_view(kind) else kind


def _decode_array(array: pyarrow.Array, kind: pyarrow.DataType) -> pyarrow.Array:
    if types.is_run_end_encoded(array.type):
        array = compute.run_end_decode(array)
    if types.is_dictionary(array.type):
        # Views cannot be taken from a dictionary.
        return array.dictionary.cast(kind).take(array.indices)
    return array.cast(kind)


def read_table(path: Path, columns: Sequence[str], key: str, rows: int | None = None) -> pyarrow.Table:
    """Read these columns of all rows of a file, or of the first `rows`.

    Raises:
        DataError: if they do not fit into memory.
        pyarrow.ArrowException, OSError: if the file cannot be read.
    """
    tables, size, count = [], decoded_size.DecodedSize(str(path), key), 0
    with parquet.ParquetFile(path) as file:
        schema = file.schema_arrow
        if missing := sorted(set(columns) - set(schema.names)):
            raise ArrowInvalid(f'{path} has no column "{missing[0]}"')
        # The first rows of a file larger than the memory can still be read.
        if rows is None:
            decoded_size.check_fits(_sum_declared_sizes(file.metadata, columns), str(path), key)
        for batch in _iterate_batches(file, columns, min(rows or BATCH_ROWS, BATCH_ROWS)):
            tables.append(decode(Table.from_batches([batch]).select(list(columns))))
            # Equal values are stored once, so rows can take more than the file declares.
            size.add(tables[-1].nbytes)
            count += len(batch)
            if rows is not None and count >= rows:
                break
    kinds = pyarrow.schema([field.with_type(_decoded_type(field.type)) for field in map(schema.field, columns)])
    table = concat_tables(tables) if tables else kinds.empty_table()
    return table.slice(0, rows).replace_schema_metadata(schema.metadata)


def _iterate_batches(file: parquet.ParquetFile, columns: Sequence[str], rows: int) -> Iterator[RecordBatch]:
    """Yield batches of up to `rows` rows, each of one row group: Arrow cannot join dictionaries of two in a struct."""
    for group in range(file.num_row_groups):
        yield from file.iter_batches(rows, row_groups=[group], columns=list(columns))


def _sum_declared_sizes(metadata: parquet.FileMetaData, columns: Sequence[str]) -> int:
    """Sum the bytes that the metadata of a file declares for these columns."""
    size = 0
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        for chunk in map(group.column, range(group.num_columns)):
            # A field of a struct has the name of its column and a dot before its own; names may have dots, too.
            path = chunk.path_in_schema
            if path in columns or path.partition(".")[0] in columns:
                size += chunk.total_uncompressed_size
    return size
