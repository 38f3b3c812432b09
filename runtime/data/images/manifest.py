"""Reads a manifest: a table with a path and a label in each row."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from runtime.data.bad_samples import BadSample
from runtime.data.formats import table_file
from runtime.data.formats.csv_dialect import CsvFiles
from runtime.errors import DataError

if TYPE_CHECKING:
    import pyarrow


@dataclass
class ManifestRows:
    """Paths and labels as written, and the rows that lack one of them."""

    names: list[str] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    bad: list[BadSample] = field(default_factory=list)


def read(file: Path, path_column: str, label_column: str | None, key: str, files: CsvFiles) -> ManifestRows:
    """Read a manifest; whitespace around paths and labels is stripped, a label 007 stays 007.

    Without a label column no labels are read, and a row needs only a path.

    Raises:
        DataError: if the file is not a table with these columns; names `key`.
    """
    options = {path_column: "data.path_column"} | ({label_column: "data.label_column"} if label_column else {})
    table = table_file.read(file, key, wanted=options, only=True, text=options, csv=files)
    rows = ManifestRows()
    for number, cells in enumerate(zip(*(_text(table, name, file, key) for name in options), strict=True), start=1):
        empty = [name for name, cell in zip(options, cells, strict=True) if not cell]
        if empty:
            rows.bad.append(BadSample(f"{file} row {number}", f"{' and '.join(empty)} is empty"))
        else:
            rows.names.append(cells[0])
            rows.labels += cells[1:]
    if not rows.names:
        raise DataError(
            f"{key}: {file} has no row with {' and '.join(options)} ({len(rows.bad):,} rows in all)",
            "one row for each image",
            "check how the file was written",
        )
    return rows


def _text(table: pyarrow.Table, column: str, file: Path, key: str) -> list[str]:
    """A column as stripped text; empty where there is no value."""
    from pyarrow import compute, string, types

    values = table[column]
    if not (types.is_string(values.type) or types.is_large_string(values.type) or types.is_null(values.type)):
        raise DataError(
            f'{key}: column "{column}" of {file} is {values.type}',
            "text, integers or truth values",
            "write the column as text",
        )
    return [str(cell) for cell in compute.utf8_trim_whitespace(values.cast(string()).fill_null("")).to_pylist()]
