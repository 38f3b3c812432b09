"""Reads a CSV, TSV, JSONL or Parquet file as a table, or reports the exact problem.

The first row below the header is row 1. In a CSV an empty cell has no value; in numeric columns, NA, N/A, NaN, NULL and
the like have no value either. A row with too many or too few cells is an error for the whole file, not a bad sample:
usually a separator in a text is not quoted, and then the rows around it cannot be trusted either.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from drivetrain.data import decoded_size
from drivetrain.data.formats import column_values, csv_layout, table_paths, text_encoding
from drivetrain.data.formats.csv_dialect import CsvFiles
from drivetrain.data.notes import list_names
from drivetrain.errors import DataError, nearest
from drivetrain.system.spelling import clean_text

if TYPE_CHECKING:
    import pyarrow

SUFFIXES = table_paths.SUFFIXES
POSSIBLE = table_paths.POSSIBLE


class _Reader(Protocol):
    def names(self) -> list[str]: ...
    def read(self, columns: Sequence[str], text: Sequence[str]) -> Any: ...
    def head(self, rows: int) -> tuple[Any, int]: ...


def read(
    path: Path,
    key: str,
    *,
    required: Mapping[str, str] | None = None,
    only: bool = False,
    leave: Collection[str] = (),
    text: Collection[str] = (),
    csv: CsvFiles | None = None,
) -> Any:
    """Read a table.

    Args:
        required: required columns, each with the spec key that names it.
        text: columns that are kept as text: a label 007 stays 007.
        csv: format of CSV files; the format detected in this file is added to it. None to detect it.

    Returns:
        A pyarrow.Table with at least one row, columns in the order of the file. Types are as in the file; for CSV and
        JSONL the type that fits all cells of a column: bool, int64, double, date, time, timestamp, string.

    Raises:
        DataError: if it cannot be read, has no rows, has two columns of one name, or lacks a column; names `key`.
    """
    required = required or {}
    with _open(path, key, csv) as reader:
        raw_column_names = reader.names()
        names = list(map(clean_text, raw_column_names))
        csv_layout.check_names(names, path, key)
        check_wanted(names, required, path)
        columns = zip(names, raw_column_names, strict=True)
        raw_names = {name: raw for name, raw in columns if (name in required or not only) and name not in leave}
        text_names = [name for name in raw_names if name in text]
        table = reader.read(list(raw_names.values()), [raw_names[name] for name in text_names])
        table = as_text(_rename(table, list(raw_names)), text_names)
        # Readers accept text that is not UTF-8.
        table.validate(full=True)
    _check_content(table, path, key)
    if csv and csv.missing:
        for position, name in enumerate(table.column_names):
            table = table.set_column(position, name, column_values.empty_cells(table[name], csv.missing))
    return table


def head(path: Path, key: str, rows: int, csv: CsvFiles | None = None) -> tuple[pyarrow.Table, int]:
    """Read the first rows of a large table, and the approximate number of all rows; columns and types as from `read`.

    Raises:
        DataError: as from `read`, for problems in the first rows.
    """
    with _open(path, key, csv) as reader:
        table, count = reader.head(rows)
        table = _rename(table, list(map(clean_text, table.column_names)))
        csv_layout.check_names(table.column_names, path, key)
        table.validate(full=True)
    _check_content(table, path, key)
    return table, count


def _rename(table: pyarrow.Table, names: list[str]) -> pyarrow.Table:
    """Rename the columns; the metadata that pandas stored stays."""
    return table.rename_columns(names).replace_schema_metadata(table.schema.metadata)


def _check_content(table: pyarrow.Table, path: Path, key: str) -> None:
    if path.suffix.lower() not in (".parquet", ".arrow") and any("binary" in str(field.type) for field in table.schema):
        # pyarrow's message for text that is not UTF-8.
        text_encoding.check(path, key)
    if not len(table):
        raise csv_layout.header_only_error(path, key)


def check_wanted(names: Collection[str], required: Mapping[str, str], path: Path) -> None:
    """Check that all required columns exist.

    Raises:
        DataError: naming all missing columns, the key that names the first and the name most similar to it.
    """
    missing = [name for name in required if name not in names]
    if missing:
        name, *others = missing
        beside = f", nor {list_names(others, 12)}" if others else ""
        # Of a trained model, the job no longer decides which columns it reads.
        other_key = ", or name another one in the job" if required[name].startswith("data.") else ""
        raise DataError(
            f'{path} has no column "{name}"{beside}',
            f"its columns: {list_names(list(names), 30)}",
            nearest(name, set(names) - set(required)) or f'rename a column of the file to "{name}"{other_key}',
            key=required[name],
        )


@contextmanager
def _open(path: Path, key: str, csv: CsvFiles | None) -> Iterator[_Reader]:
    """Open a table with content; errors of its reader in the block are reported to the user."""
    suffix = _check_suffix(path, key)
    # The readers import pyarrow, which not every task needs.
    from pyarrow import ArrowException

    from drivetrain.data.formats import arrow_file, csv_file, jsonl_file, parquet_file

    try:
        if suffix == ".parquet":
            yield parquet_file.ParquetReader(path, key)
        elif suffix == ".arrow":
            yield arrow_file.ArrowReader(path, key)
        elif suffix == ".jsonl":
            text_encoding.check_mark(path, key)
            yield jsonl_file.JsonlReader(path, key)
        else:
            yield csv_file.CsvReader(path, key, csv or CsvFiles())
    except MemoryError:
        raise decoded_size.too_large_error(f"{path} does not fit into memory", key) from None
    except (ArrowException, OSError, UnicodeDecodeError) as error:
        if suffix == ".jsonl":
            text_encoding.check(path, key)
        raise DataError(
            f"{path} cannot be read: {_describe_error(error)}", POSSIBLE, "write the file again", key=key
        ) from None


def _check_suffix(path: Path, key: str) -> str:
    """Check that a file is a table with content; returns its suffix, which shows its kind."""
    check_installed(path, key)
    if path.is_dir():
        raise DataError(f"{path} is a folder", POSSIBLE, "name one file", key=key)
    suffix = path.suffix.lower()
    table_paths.check_is_table(path, key)
    table_paths.check_suffix(path, key)
    if path.exists() and path.stat().st_size == 0:
        raise DataError(f"{path} is empty (0 bytes)", POSSIBLE, "check how the file was written", key=key)
    return suffix


def check_installed(path: Path, key: str) -> None:
    """Refuse a table if pyarrow is not installed here, or cannot be loaded; raises DataError."""
    try:
        import pyarrow  # noqa: F401 - only asks whether it is there
    except ImportError as error:
        if not isinstance(error, ModuleNotFoundError):  # its libraries do not fit into the address space (ulimit -v)
            raise DataError(
                f"{path} is a table, and pyarrow cannot be loaded here: {error}",
                "a limit of memory into which its libraries fit, and an installation that is whole",
                "ulimit -v unlimited; or install it again: pip install --force-reinstall pyarrow",
                key=key,
            ) from None
        raise DataError(
            f"{path} is a table, and pyarrow is not installed here",
            "an environment with pyarrow",
            "pip install pyarrow, or use an image of this project, which has it",
            key=key,
        ) from None


def as_text(table: pyarrow.Table, names: Collection[str]) -> pyarrow.Table:
    """Convert integers and booleans of these columns to text; other types stay, for the caller to check."""
    from pyarrow import string, types

    for name in names:
        kind = table.schema.field(name).type
        if types.is_integer(kind) or types.is_boolean(kind):
            table = table.set_column(table.column_names.index(name), name, table[name].cast(string()))
    return table


def _describe_error(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    text = str(error).strip()
    return text.splitlines()[0][:300] if text else type(error).__name__
