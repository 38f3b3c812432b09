"""Reads Parquet files: typed columns, in parallel."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from runtime.data import decoded_size
from runtime.data.formats import parquet_batches, shards
from runtime.errors import DataError

if TYPE_CHECKING:
    import pyarrow


MOST = 1 << 30
"""Bytes of text in a chunk that is converted at once."""


class ParquetReader:
    """Reads one file, or all files of a table in several."""

    def __init__(self, path: Path, key: str) -> None:
        self.path, self.key = path, key
        self.files = shards.files(path, key)

    def names(self) -> list[str]:
        """The column names."""
        from pyarrow import ArrowInvalid, parquet

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
        from pyarrow import concat_tables

        return concat_tables([self._read(path, columns) for path in self.files], promote_options="default")

    def head(self, rows: int) -> tuple[pyarrow.Table, int]:
        """The first rows, and the number of all rows."""
        from pyarrow import parquet

        count = sum(parquet.read_metadata(path).num_rows for path in self.files)
        return self._read(self.path, self.names(), rows), count

    def _read(self, path: Path, columns: Sequence[str], rows: int | None = None) -> pyarrow.Table:
        table = parquet_batches.read(path, columns, str(path), self.key, rows)
        return shards.class_names(decoded(table, str(path), self.key))


def decoded(table: pyarrow.Table, subject: str, key: str) -> pyarrow.Table:
    """The same table with the values of its dictionary columns, and all text in one type: writers use string,
    large_string (pandas 3, polars) and string_view for the same text, and not every computation knows all of them.

    Args:
        table: as read.
        subject: the file, for messages.
        key: the spec key that names it.

    Raises:
        DataError: if they do not fit into memory.
    """
    from pyarrow import chunked_array, compute, types

    for index, field in enumerate(table.schema):
        column = table[field.name]
        if types.is_dictionary(column.type):
            decoded_size.check(_values_bytes(column), f'column "{field.name}" of {subject}', key)
            chunks = [_values(chunk) for chunk in column.chunks]
            column = chunked_array(chunks) if chunks else column.cast(column.type.value_type)
        elif types.is_run_end_encoded(column.type):
            column = compute.run_end_decode(column)
        if types.is_large_string(column.type) or types.is_string_view(column.type):
            column = _strings(column)
        if column.type != field.type:
            table = table.set_column(index, field.name, column)
    return table


def _values(chunk: pyarrow.DictionaryArray) -> pyarrow.Array:
    from pyarrow import string, types

    values = chunk.dictionary
    # Views cannot be taken from a dictionary.
    return (values.cast(string()) if types.is_string_view(values.type) else values).take(chunk.indices)


def _strings(column: pyarrow.ChunkedArray) -> pyarrow.ChunkedArray:
    """Text of any type as `string`, whose chunks hold two gigabytes at most."""
    from pyarrow import chunked_array, string

    chunks = list(column.chunks)
    small = []
    while chunks:
        chunk = chunks.pop()
        if chunk.nbytes > MOST and len(chunk) > 1:
            half = len(chunk) // 2
            chunks += [chunk.slice(0, half), chunk.slice(half)]
        else:
            small.append(chunk.cast(string()))
    return chunked_array(reversed(small), string())


def _values_bytes(column: pyarrow.ChunkedArray) -> int:
    """Bytes of the values of a dictionary column."""
    from pyarrow import compute, types

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
