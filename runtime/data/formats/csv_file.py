"""Reads CSV files with commas and TSV files with tabs: UTF-8, with a header, cells quoted where needed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from runtime.data.formats import csv_header, text_encoding
from runtime.errors import DataError
from runtime.job.formatting import printable

BLOCK = 1 << 22
"""Bytes from which the first rows are read."""
SHOWN = 5
"""Largest number of rows of wrong length in a message."""


def names(path: Path, key: str) -> list[str]:
    """The column names in the header.

    Raises:
        DataError: if there is no header, or another separator is used; names `key`.
    """
    from pyarrow import ArrowInvalid, csv

    try:
        with csv.open_csv(path, parse_options=_parsing(path)) as reader:
            found = list(reader.schema.names)
    except ArrowInvalid as error:
        if "Empty CSV" in str(error):
            raise csv_header.no_rows(path, key) from None
        csv_header.check_separator(path, key)
        _check_lengths(path, key)
        raise
    if len(found) == 1:
        csv_header.check_separator(path, key)
    return found


def read(path: Path, key: str, columns: Sequence[str], text: Sequence[str]) -> Any:
    """Read these columns; those in `text` are kept as written.

    Raises:
        DataError: if rows have different numbers of cells, or a quote is not closed; names `key`.
    """
    from pyarrow import ArrowInvalid, csv, string

    options = csv.ConvertOptions(include_columns=list(columns), column_types=dict.fromkeys(text, string()))
    try:
        table = csv.read_csv(path, parse_options=_parsing(path), convert_options=options)
    except ArrowInvalid:
        _check_lengths(path, key)
        raise
    _check_last(path, key, table)
    return table


def head(path: Path, key: str, rows: int) -> tuple[Any, int]:
    """The first rows, and the approximate number of all rows.

    Raises:
        DataError: if rows have different numbers of cells; names `key`.
    """
    from pyarrow import ArrowInvalid, Table, csv

    options = csv.ReadOptions(block_size=BLOCK)
    try:
        with csv.open_csv(path, read_options=options, parse_options=_parsing(path)) as reader:
            block = Table.from_batches([next(iter(reader))])
    except ArrowInvalid:
        _check_lengths(path, key)
        raise
    size = path.stat().st_size
    return block.slice(0, rows), max(len(block), len(block) * size // min(BLOCK, size))


def _parsing(path: Path, **options: object) -> object:
    from pyarrow import csv

    separator = "\t" if path.suffix.lower() == ".tsv" else ","
    return csv.ParseOptions(delimiter=separator, newlines_in_values=True, **options)


def _check_lengths(path: Path, key: str) -> None:
    """Read the file again in one thread to find the rows that are too short or too long."""
    from pyarrow import ArrowInvalid, csv

    # The message shows the text of rows with a wrong length.
    text_encoding.check(path, key)

    wrong: list[str] = []

    def note(row: Any) -> str:
        # For the parser the header is row 1.
        wrong.append(f"row {row.number - 1}: {row.actual_columns} cells, {printable(row.text)}")
        expected.append(row.expected_columns)
        return "skip"

    expected: list[int] = []
    serial = csv.ReadOptions(use_threads=False)
    try:
        with csv.open_csv(path, read_options=serial, parse_options=_parsing(path, invalid_row_handler=note)) as reader:
            for _ in reader:
                pass
    except ArrowInvalid:
        # If no row is wrong, the failure has another cause, which the caller reports.
        pass
    if wrong:
        more = [f"and {len(wrong) - SHOWN:,} more"] if len(wrong) > SHOWN else []
        head = f"{key}: {path} has {expected[0]} columns; rows of another length: {len(wrong):,}"
        raise DataError(
            "\n    ".join([head, *wrong[:SHOWN], *more]),
            "as many cells in each row as in the header",
            "put quotes around cells that contain a comma, and add missing commas",
        )


def _check_last(path: Path, key: str, table: Any) -> None:
    """Check the last row: an unclosed quote turns the rest of the file into one cell, and the parser accepts that."""
    cell = table.column(table.num_columns - 1)[-1].as_py() if len(table) and table.num_columns else None
    if not isinstance(cell, str) or "\n" not in cell:
        return
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 64))
        closed = file.read().rstrip().endswith(b'"')
    if not closed:
        raise DataError(
            f"{key}: {path} row {len(table):,}: a quote is not closed, so the rest of the file is read as one cell",
            'quotes in pairs; a quote inside of a cell is written ""',
            "close it",
        )
