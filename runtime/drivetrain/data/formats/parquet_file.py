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
    parts = [part.cast(string()) for chunk in column.chunks for part in _cut(chunk, MAX_CHUNK_BYTES)]
    return chunked_array(parts, string())


def _count_bytes(array: Any, *, reserved: bool = False) -> int:
    """Count the bytes of an array once its dictionaries, also in structs and lists, are replaced with their values.

    With `reserved`, count the bytes that Arrow reserves for this, if they are more: it assumes the mean length for each value.
    """
    if types.is_dictionary(array.type):
        values = array.dictionary
        if types.is_nested(values.type):
            # Rare: each value is assumed to be as long as all of them.
            return len(array) * int(values.nbytes)
        if types.is_primitive(values.type) or types.is_fixed_size_binary(values.type):
            return len(array) * max(1, int(values.type.bit_width) // 8)
        lengths = compute.binary_length(values.cast("string") if types.is_string_view(values.type) else values)
        taken = int(compute.sum(lengths.take(array.indices).cast("int64")).as_py() or 0)
        mean = int(values.nbytes) // max(1, len(values)) if reserved else 0
        return max(4 * len(array) + taken, len(array) * mean)
    if types.is_struct(array.type):
        return sum(_count_bytes(field, reserved=reserved) for field in array.flatten())
    if types.is_map(array.type):
        first, end = array.offsets[0].as_py(), array.offsets[-1].as_py()
        return 4 * len(array) + _count_bytes(array.values.slice(first, end - first), reserved=reserved)
    if types.is_nested(array.type):
        return 4 * len(array) + _count_bytes(array.flatten(), reserved=reserved)
    return int(array.nbytes)


def _cut(array: Any, limit: int) -> list[Any]:
    """Return the rows of an array in slices whose values take at most `limit` bytes, or one row."""
    if len(array) < 2 or _count_bytes(array, reserved=True) <= limit:
        return [array]
    half = len(array) // 2
    return _cut(array.slice(0, half), limit) + _cut(array.slice(half), limit)


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
        decoded_size.DecodedSize(subject, key, limit).add(sum(chunk.size for group in groups for chunk in group))
    texts = {chunk.path for group in groups for chunk in group if chunk.has_dictionary}
    kinds = pyarrow.schema([_replace_views(schema.field(name)) for name in columns])
    # The declared sizes may be wrong, so the decoded batches are counted, too.
    part_limit = min(limit // MEMORY_PARTS, MAX_CHUNK_BYTES)
    size, parts, count = decoded_size.DecodedSize(subject, key, limit), [], 0
    with parquet.ParquetFile(source, metadata=metadata, read_dictionary=sorted(texts)) as file:
        for number, group in enumerate(groups):
            for chunk in group:
                decoded_size.check_fits(chunk.largest, f'column "{chunk.path}" of {subject}', key)
            most = max(1, min(part_limit // (1 + sum(chunk.value for chunk in group)), rows or MAX_BATCH_ROWS))
            for batch in file.iter_batches(most, row_groups=[number], columns=list(columns)):
                size.add(_count_bytes(table := batch.select(list(columns)).to_struct_array()))
                for part in _cut(table, part_limit):
                    # A slice of lists is copied, since a cast would decode the values of all lists.
                    copy = part if part is table else pyarrow.concat_arrays([part, part[:0]])
                    parts.append(RecordBatch.from_struct_array(copy).cast(kinds))
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
    elif types.is_map(kind):
        kind = pyarrow.map_(_replace_views(kind.key_field), _replace_views(kind.item_field), kind.keys_sorted)
    elif types.is_list(kind) or types.is_fixed_size_list(kind):
        kind = pyarrow.list_(_replace_views(kind.value_field), getattr(kind, "list_size", -1))
    elif types.is_large_list(kind):
        kind = pyarrow.large_list(_replace_views(kind.value_field))
    return field.with_type(kind)


def _iterate_chunks(opened: Any, group: int, columns: Sequence[str]) -> Iterator[_Chunk]:
    """Yield the parts of a row group that belong to these columns."""
    row_group = opened.metadata.row_group(group)
    kinds = [(field.name, str(field.type)) for field in opened.schema_arrow if field.name in columns]
    for index in range(row_group.num_columns):
        part, column = row_group.column(index), opened.schema.column(index)
        path = str(part.path_in_schema)
        if not (own := [kind for name, kind in kinds if path == name or path.startswith(f"{name}.")]):
            continue
        values, unpacked = int(part.num_values), int(part.total_uncompressed_size)
        fixed = column.length if part.physical_type == "FIXED_LEN_BYTE_ARRAY" else 0
        width = int(_WIDTHS.get(part.physical_type, fixed))
        has_dictionary = not width and any("DICTIONARY" in encoding for encoding in part.encodings)
        # A text may be as long as all: if it refers to the one before (DELTA), or if Arrow cannot read its dictionary.
        is_opaque = has_dictionary and any("extension<" in kind or "list_view<" in kind for kind in own)
        average = unpacked if is_opaque or "DELTA_BYTE_ARRAY" in part.encodings else unpacked // max(1, values) + 4
        # A row may have all values of a list, and a page is unpacked whole.
        is_packed = unpacked > MAX_PACKING * part.total_compressed_size
        largest = values * (width or average) if column.max_repetition_level else unpacked if is_packed else 0
        yield _Chunk(path, max(values * width, unpacked), width or average, largest, has_dictionary and not is_opaque)
