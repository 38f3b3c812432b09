"""Manifest: a CSV or Parquet file with a path and a label in each row."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runtime.data.bad import Bad
from runtime.data.labels import listed
from runtime.errors import DataError, nearest

SUFFIXES = (".csv", ".parquet")


@dataclass
class Rows:
    """Paths as written with their labels, and the rows that lack one of them."""

    names: list[str] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    bad: list[Bad] = field(default_factory=list)


def read(file: Path, path_column: str, label_column: str, key: str) -> Rows:
    """The rows of a manifest; spaces around paths and labels are dropped.

    A CSV is UTF-8 with commas and a header. All of it is text: a label 007 stays 007.

    Raises:
        DataError: if the file is not such a table; names `key`.
    """
    try:
        import pyarrow as arrow
    except ImportError:
        raise DataError(f"{key}: {file} is a table, and pyarrow is not installed here", "a folder or an .npz file",
                        "pip install pyarrow, or use an image of this project, which has it") from None  # fmt: skip
    try:
        table = _table(file, (path_column, label_column), key)
        paths, labels = (_text(table, column, file, key) for column in (path_column, label_column))
    except (arrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DataError(f"{key}: {file} cannot be read: {_reason(error)}",
                        "a CSV in UTF-8 with commas and a header, or a Parquet file",
                        "write the file again") from None  # fmt: skip
    rows = Rows()
    for number, (path, label) in enumerate(zip(paths, labels, strict=True), start=1):
        empty = [name for name, cell in ((path_column, path), (label_column, label)) if not cell]
        if empty:
            rows.bad.append(Bad(f"{file} row {number}", f"{' and '.join(empty)} is empty"))
        else:
            rows.names.append(path)
            rows.labels.append(label)
    if not rows.names:
        raise DataError(f"{key}: {file} has no row with a path and a label ({len(rows.bad):,} rows in all)",
                        "one row for each image", "check how the file was written")  # fmt: skip
    return rows


def _table(file: Path, columns: tuple[str, str], key: str) -> Any:
    if file.suffix.lower() == ".csv":
        from pyarrow import csv, string

        _check_text(file, key)
        with csv.open_csv(file) as reader:
            _check_columns(reader.schema.names, columns, file, key)
        as_text = csv.ConvertOptions(column_types=dict.fromkeys(columns, string()), include_columns=list(columns))
        return csv.read_csv(file, convert_options=as_text)
    from pyarrow import parquet

    _check_columns(parquet.read_schema(file).names, columns, file, key)
    return parquet.read_table(file, columns=list(columns))


def _check_text(file: Path, key: str) -> None:
    with file.open("rb") as content:
        start = content.read(4096)
    if not start:
        raise DataError(f"{key}: {file} is empty", "a CSV with a header and one row for each image",
                        "check how the file was written")  # fmt: skip
    if b"\0" in start:
        raise DataError(f"{key}: {file} is not UTF-8: it holds zero bytes, as UTF-16 does",
                        "a CSV in UTF-8 with commas and a header", "write the file again in UTF-8")  # fmt: skip


def _check_columns(names: list[str], wanted: tuple[str, str], file: Path, key: str) -> None:
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise DataError(f"{key}: {file} has several columns of the name {listed(twice)}", "one column of each name",
                        "rename or remove the others")  # fmt: skip
    for name, option in zip(wanted, ("path_column", "label_column"), strict=True):
        if name in names:
            continue
        commas = "separate the columns by commas" if len(names) == 1 and any(c in names[0] for c in ";\t|") else ""
        raise DataError(f'{key}: {file} has no column "{name}"', f"its columns: {listed(names)}",
                        commas or nearest(name, names) or f"name the column in data.{option}")  # fmt: skip


def _text(table: Any, column: str, file: Path, key: str) -> list[str]:
    """A column as stripped text; empty where there is no value."""
    from pyarrow import compute, string, types

    values = table[column]
    kind = values.type.value_type if types.is_dictionary(values.type) else values.type
    if not (types.is_string(kind) or types.is_large_string(kind) or types.is_integer(kind) or types.is_boolean(kind)):
        raise DataError(f'{key}: column "{column}" of {file} is {kind}', "text, integers or booleans",
                        "write the column as text")  # fmt: skip
    return [str(cell) for cell in compute.utf8_trim_whitespace(values.cast(string()).fill_null("")).to_pylist()]


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    return f"it is not UTF-8 ({text})" if "UTF8" in text or "utf-8" in text else text
