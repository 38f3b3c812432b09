"""Reads Parquet files: typed columns, in batches of rows that fit into memory.

A column may store a text of megabytes once and refer to it from a million rows (a dictionary). Such a column is read
as a dictionary, and the size of its texts is checked before each row gets its own copy.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow
from pyarrow import ArrowInvalid, Table, binary, chunked_array, compute, concat_tables, parquet, string, types

from drivetrain.data import decoded_size
from drivetrain.data.decoded_size import DecodedSize
from drivetrain.data.formats import shards
from drivetrain.errors import DataError

MAX_CHUNK_BYTES = 1 << 30
"""Largest number of bytes of text that are converted at once."""
MEMORY_PARTS = 16
"""Divisor of the free memory that gives the largest size of a batch of rows."""
MAX_BATCH_ROWS = 1 << 20
"""Largest number of rows in a batch, for a table that is read completely."""
MAX_PACKING = 1000
"""Largest plausible ratio of the size of texts or images to their compressed page."""
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
    """Convert text of any type to `string`, whose chunks hold two gigabytes at most."""
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


def _count_bytes(array: Any, *, reserved: bool = False) -> int:
    """Count the bytes of an array once its dictionaries, also in structs and lists, are replaced with their values.

    With `reserved`, count the bytes that Arrow reserves for this: it assumes the mean length for each value.
    """
    if types.is_dictionary(array.type):
        values = array.dictionary
        if reserved:
            return len(array) * (int(values.nbytes) // max(1, len(values)))
        if types.is_nested(values.type):
            # Rare: each value is assumed to be as long as all of them.
            return len(array) * int(values.nbytes)
        if types.is_primitive(values.type) or types.is_fixed_size_binary(values.type):
            return len(array) * max(1, int(values.type.bit_width) // 8)
        lengths = compute.binary_length(values.cast("string") if types.is_string_view(values.type) else values)
        return 4 * len(array) + int(compute.sum(lengths.take(array.indices).cast("int64")).as_py() or 0)
    if types.is_struct(array.type):
        return sum(_count_bytes(field, reserved=reserved) for field in array.flatten())
    if types.is_list(array.type) or types.is_large_list(array.type):
        return 4 * len(array) + _count_bytes(array.flatten(), reserved=reserved)
    return int(array.nbytes)


@dataclass(frozen=True)
class _Chunk:
    """One column of a row group, as described by its metadata."""

    path: str
    """Path of the column, with dots before the fields of a struct."""
    size: int
    """Bytes of all values if none is shared."""
    value: int
    """Largest number of bytes of a value, or the mean if each value is written in full."""
    largest: int
    """Number of bytes that are decoded at once, however few rows are read."""
    has_dictionary: bool
    """Whether texts are written once, and rows refer to them."""


def read_table(source: Path, columns: Sequence[str], subject: str, key: str, rows: int | None = None) -> Any:
    """Read all rows of a file, or the first `rows`, as a pyarrow.Table with these columns.

    Raises:
        DataError: if they do not fit into memory.
        pyarrow.ArrowException, OSError: if the file cannot be read.
    """
    with parquet.ParquetFile(source) as opened:
        metadata, schema = opened.metadata, opened.schema_arrow
        groups = [list(_iterate_chunks(opened, group, columns)) for group in range(opened.num_row_groups)]
    if missing := sorted(set(columns) - set(schema.names)):
        raise ArrowInvalid(f'{subject} has no column "{missing[0]}"')
    # Parts that grow while they are decoded take memory next to the finished ones.
    limit = decoded_size.free_memory() * 3 // 4
    if rows is None:
        DecodedSize(subject, key, limit).add(sum(chunk.size for group in groups for chunk in group))
    texts = {chunk.path for group in groups for chunk in group if chunk.has_dictionary}
    kinds = pyarrow.schema([_replace_views(schema.field(name)) for name in columns])
    # The declared sizes may be wrong, so the decoded batches are counted, too.
    size, part_limit, parts, count = DecodedSize(subject, key, limit), limit // MEMORY_PARTS, [], 0
    with parquet.ParquetFile(source, metadata=metadata, read_dictionary=sorted(texts)) as file:
        for number, group in enumerate(groups):
            for chunk in group:
                decoded_size.check_fits(chunk.largest, f'column "{chunk.path}" of {subject}', key)
            most = part_limit // (1 + sum(chunk.value for chunk in group))
            most = max(1, min(most, rows or MAX_BATCH_ROWS))
            for batch in file.iter_batches(most, row_groups=[number], columns=list(columns)):
                size.add(sum(map(_count_bytes, batch.columns)))
                reserved = sum(_count_bytes(column, reserved=True) for column in batch.columns)
                step = max(1, len(batch) * part_limit // max(part_limit, reserved))
                rows_in_order = batch.select(list(columns))
                parts += [rows_in_order.slice(start, step).cast(kinds) for start in range(0, len(batch), step)]
                count += len(batch)
                if rows is not None and count >= rows:
                    return Table.from_batches(parts).slice(0, rows).replace_schema_metadata(schema.metadata)
    return Table.from_batches(parts, kinds).replace_schema_metadata(schema.metadata)


def _replace_views(field: pyarrow.Field) -> pyarrow.Field:
    """Return a field with plain texts in place of views, since a dictionary cannot become views."""
    kind = field.type
    if types.is_string_view(kind) or types.is_binary_view(kind):
        kind = string() if types.is_string_view(kind) else binary()
    elif types.is_struct(kind):
        kind = pyarrow.struct([_replace_views(inner) for inner in kind.fields])
    elif types.is_list(kind):
        kind = pyarrow.list_(_replace_views(kind.value_field))
    elif types.is_large_list(kind):
        kind = pyarrow.large_list(_replace_views(kind.value_field))
    return field.with_type(kind)


def _iterate_chunks(opened: Any, group: int, columns: Sequence[str]) -> Iterator[_Chunk]:
    """Yield the parts of a row group that belong to these columns."""
    row_group = opened.metadata.row_group(group)
    for index in range(row_group.num_columns):
        part, column = row_group.column(index), opened.schema.column(index)
        path = str(part.path_in_schema)
        if not any(path == name or path.startswith(f"{name}.") for name in columns):
            continue
        values, unpacked = int(part.num_values), int(part.total_uncompressed_size)
        fixed = column.length if part.physical_type == "FIXED_LEN_BYTE_ARRAY" else 0
        width = int(_WIDTHS.get(part.physical_type, fixed))
        # In this encoding a text refers to the previous text.
        average = unpacked if "DELTA_BYTE_ARRAY" in part.encodings else unpacked // max(1, values) + 4
        # A row may have all values of a list, and a page is unpacked whole.
        is_packed = unpacked > MAX_PACKING * part.total_compressed_size
        largest = values * (width or average) if column.max_repetition_level else unpacked if is_packed else 0
        has_dictionary = not width and any("DICTIONARY" in encoding for encoding in part.encodings)
        yield _Chunk(path, max(values * width, unpacked), width or average, largest, has_dictionary)
