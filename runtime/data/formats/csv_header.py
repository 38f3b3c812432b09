"""The header of a CSV or TSV file, read without pyarrow: before training, and where only containers have it."""

from __future__ import annotations

from pathlib import Path

from runtime.data.formats import csv_layout
from runtime.data.formats.csv_dialect import CsvFiles
from runtime.errors import DataError


def names(path: Path, key: str, files: CsvFiles) -> list[str] | None:
    """The column names; None where only the reader of the whole file can tell.

    Raises:
        DataError: if there is no header or no row, or if encoding or separator are not clear; names `key`.
    """
    try:
        layout = csv_layout.find(path, key, files, whole=False)
    except OSError:
        return None
    if layout.is_empty:
        raise no_rows(path, key)
    if not layout.names:
        return None
    if not layout.rows:
        raise DataError(f"{key}: {path} has a header and no rows", "at least one row", "check how the file was written")
    return list(layout.names)


def no_rows(path: Path, key: str) -> DataError:
    """The error for a file without any text."""
    return DataError(f"{key}: {path} has no rows", "a header and at least one row", "check how the file was written")
