"""The header of a CSV or TSV file, read without pyarrow: before training, and where only containers have it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from runtime.data.formats import csv_layout
from runtime.data.formats.csv_dialect import CsvFiles
from runtime.errors import DataError


def names(path: Path, key: str, files: CsvFiles) -> list[str] | None:
    """The column names; None where only the reader of the whole file can tell.

    Raises:
        DataError: if there is no header or no row, or if encoding, separator or names are not clear; names `key`.
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
    check_names(layout.names, path, key)
    return list(layout.names)


def check_names(names: Sequence[str], path: Path, key: str) -> None:
    """Check that each column has a name of its own.

    Raises:
        DataError: if one has none, or two have the same; names `key`.
    """
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise DataError(
            f"{key}: {path} has several columns named {', '.join(twice[:10])}",
            "one column of each name",
            "rename or remove the others",
        )
    if not all(name.strip() for name in names):
        number = next(i for i, name in enumerate(names, start=1) if not name.strip())
        raise DataError(
            f"{key}: column {number} of {path} has no name",
            "a name for every column",
            "name or remove it; pandas and R write row names this way: use to_csv(..., index=False) or row.names = FALSE",
        )


def no_rows(path: Path, key: str) -> DataError:
    """The error for a file without any text."""
    return DataError(f"{key}: {path} has no rows", "a header and at least one row", "check how the file was written")
