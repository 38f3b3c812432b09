"""Reads Parquet files: typed columns, in batches of rows that fit into memory.

A column may store a text of megabytes once and refer to it from a million rows (a dictionary). Such a column, or field of
a struct or list, is read as a dictionary, and the size of its values is checked before each row gets its own copy.
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
        return shards.class_names(read_table(path, columns, str(path), self.key, rows))


def decode(table: pyarrow.Table) -> pyarrow.Table:
    """Replace dictionaries with their values, and convert all text to one type, also in structs and lists.

    Writers use string, large_string (pandas 3, polars) and string_view for the same text, and not every computation
    knows all of them.
    """
    for index, field in enumerate(table.schema):
        if (kind := _decoded_type(field.type)) != field.type:
            chunks = (part for chunk in table[field.name].chunks for part in _cut(chunk, MAX_CHUNK_BYTES))
            parts = [_decode_array(part, kind) for part in chunks]
            table = table.set_column(index, field.name, chunked_array(parts, kind))
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


def count_bytes(array: Any) -> int:
    """Count the bytes of an array once its dictionaries, also in structs and lists, are replaced with their values."""
    if "dictionary<" not in str(array.type):
        return int(array.nbytes)
    return 4 * len(array) + sum(map(_count_leaf_bytes, _iterate_leaves(array)))


def _iterate_leaves(array: Any) -> Iterator[pyarrow.Array]:
    """Yield the arrays that structs and lists are made of."""
    if types.is_map(array.type):
        first, end = array.offsets[0].as_py(), array.offsets[-1].as_py()
        yield from _iterate_leaves(array.values.slice(first, end - first))
    elif types.is_nested(array.type):
        for part in array.flatten() if types.is_struct(array.type) else [array.flatten()]:
            yield from _iterate_leaves(part)
    else:
        yield array


def _count_leaf_bytes(array: Any) -> int:
    if not types.is_dictionary(array.type):
        return int(array.nbytes)
    values = array.dictionary
    if not (types.is_string(values.type) or types.is_binary(values.type) or types.is_string_view(values.type)):
        # Each value is assumed to take the mean, such as numbers do.
        return len(array) * -(-int(values.nbytes) // max(1, len(values)))
    lengths = _measure_texts(values)
    return 4 * len(array) + int(compute.sum(lengths.take(array.indices).cast("int64")).as_py() or 0)


def _measure_texts(values: pyarrow.Array) -> pyarrow.Array:
    """Return the number of bytes of each text."""
    return compute.binary_length(values.cast(string()) if types.is_string_view(values.type) else values)


def _cut(array: Any, limit: int) -> list[Any]:
    """Return the rows of an array in slices whose values take at most `limit` bytes, or one row."""
    if len(array) < 2 or count_bytes(array) <= limit:
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
    dictionaries = _find_dictionaries(source, chunks, min(limit - declared, MAX_CHUNK_BYTES))
    # The declared sizes may be wrong, so the decoded batches are counted, too.
    size, parts = decoded_size.DecodedSize(subject, key, limit), []
    for batch in _iterate_batches(source, columns, dictionaries, batch_rows, rows):
        size.add(sum(map(count_bytes, batch.columns)))
        parts.append(batch)
    # Values take their memory only now, in place of the batch that they come from.
    tables = [decode(Table.from_batches([parts.pop(0)])) for _ in range(len(parts))]
    kinds = pyarrow.schema([field.with_type(_decoded_type(field.type)) for field in map(schema.field, columns)])
    table = concat_tables(tables) if tables else kinds.empty_table()
    return table.slice(0, rows).replace_schema_metadata(schema.metadata)


def _find_dictionaries(source: Path, chunks: Sequence[_Chunk], limit: int) -> list[str]:
    """Find the paths of shared values that may take more than `limit` bytes once each row has its own copy."""
    shared = [chunk for chunk in chunks if chunk.is_shared]
    paths, columns = sorted({chunk.path for chunk in shared}), sorted({chunk.column for chunk in shared})
    if not paths:
        return []
    # The first row comes with all values that the rows of its group share.
    with parquet.ParquetFile(source, read_dictionary=paths) as file:
        groups = range(file.num_row_groups)
        first_rows = [next(file.iter_batches(1, row_groups=[group], columns=columns), None) for group in groups]
    leaves = [leaf for row in first_rows if row for array in row.columns for leaf in _iterate_leaves(array)]
    dictionaries = [leaf.dictionary for leaf in leaves if types.is_dictionary(leaf.type)]
    lengths = [compute.max(_measure_texts(values)).as_py() for values in dictionaries]
    is_small = all(lengths) and max(lengths, default=0) * sum(chunk.values for chunk in shared) <= limit
    return [] if is_small and len(lengths) >= len(shared) else paths


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
    values: int
    """Number of values."""
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
            yield _Chunk(column, path, size, longest, values, is_text and not is_opaque and "DICTIONARY" in encodings)
