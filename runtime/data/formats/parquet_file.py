"""Reads Parquet files: typed columns, in parallel."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from runtime.data.formats import shards
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
        from pyarrow import concat_tables, parquet

        return concat_tables(
            [shards.class_names(decoded(parquet.read_table(path, columns=list(columns)))) for path in self.files]
        )

    def head(self, rows: int) -> tuple[pyarrow.Table, int]:
        """The first rows, and the number of all rows."""
        from pyarrow import Table, parquet

        with parquet.ParquetFile(self.path) as file:
            batch = next(file.iter_batches(rows), None)
            table = file.schema_arrow.empty_table() if batch is None else Table.from_batches([batch])
            count = file.metadata.num_rows + sum(parquet.read_metadata(path).num_rows for path in self.files[1:])
            return shards.class_names(decoded(table)), count


def decoded(table: pyarrow.Table) -> pyarrow.Table:
    """The same table with the values of its dictionary columns."""
    from pyarrow import types

    for index, field in enumerate(table.schema):
        if types.is_dictionary(field.type):
            table = table.set_column(index, field.name, table[field.name].cast(field.type.value_type))
    return table
