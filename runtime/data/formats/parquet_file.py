"""Reads Parquet files: typed columns, in parallel."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from runtime.errors import DataError


def names(path: Path, key: str) -> list[str]:
    """The column names."""
    from pyarrow import ArrowInvalid, parquet

    try:
        return list(parquet.read_schema(path).names)
    except ArrowInvalid as error:
        if "magic bytes" in str(error):
            raise DataError(
                f"{key}: {path} is not a Parquet file, or is incomplete",
                "a complete Parquet file",
                "copy or write it again",
            ) from None
        raise


def read(path: Path, key: str, columns: Sequence[str], text: Sequence[str]) -> Any:
    """Read these columns; dictionary columns as their values."""
    from pyarrow import parquet, types

    table = parquet.read_table(path, columns=list(columns))
    for index, field in enumerate(table.schema):
        if types.is_dictionary(field.type):
            table = table.set_column(index, field.name, table[field.name].cast(field.type.value_type))
    return table
