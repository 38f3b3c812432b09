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

        return concat_tables([self._read(path, columns) for path in self.files])

    def head(self, rows: int) -> tuple[pyarrow.Table, int]:
        """The first rows, and the number of all rows."""
        from pyarrow import parquet

        count = sum(parquet.read_metadata(path).num_rows for path in self.files)
        return self._read(self.path, self.names(), rows), count

    def _read(self, path: Path, columns: Sequence[str], rows: int | None = None) -> pyarrow.Table:
        table = parquet_batches.read(path, columns, str(path), self.key, rows)
        return shards.class_names(decoded(table, str(path), self.key))


def decoded(table: pyarrow.Table, subject: str, key: str) -> pyarrow.Table:
    """The same table with the values of its dictionary columns.

    Args:
        table: as read.
        subject: the file, for messages.
        key: the spec key that names it.

    Raises:
        DataError: if they do not fit into memory.
    """
    from pyarrow import types

    for index, field in enumerate(table.schema):
        if types.is_dictionary(field.type):
            decoded_size.check(_values_bytes(table[field.name]), f'column "{field.name}" of {subject}', key)
            table = table.set_column(index, field.name, table[field.name].cast(field.type.value_type))
    return table


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
            lengths = compute.binary_length(chunk.dictionary).take(chunk.indices)
            size += 4 * len(chunk) + int(compute.sum(lengths).as_py() or 0)
    return size
