"""Writes predictions next to the columns of their input table, in the form of that file.

A CSV file keeps its separator, encoding, byte order mark, decimal sign and line ends, and every cell as it is written, so a
spreadsheet that wrote the table opens the result. A row that could not be predicted stays, with empty predictions.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from drivetrain.data.formats import csv_layout, table_file
from drivetrain.data.formats.csv_dialect import SUFFIXES, CsvFiles, Dialect
from drivetrain.errors import SpecError

_UTF8_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class TableForm:
    """How the output is written."""

    sign: str = ","
    """Separator of the cells."""
    encoding: str = "utf-8"
    """Name of the encoding, as for `open`."""
    line_end: str = "\n"
    has_decimal_comma: bool = False

    def format(self, value: object) -> object:
        """Format a prediction as a cell: a number gets the decimal sign of the file."""
        return str(value).replace(".", ",") if self.has_decimal_comma and isinstance(value, float) else value


@dataclass(frozen=True)
class InputTable:
    """One input file."""

    path: Path
    names: Sequence[str]
    rows: Iterable[Sequence[str]]
    """The cells of each row as written."""
    form: TableForm


def open_table(path: Path, files: CsvFiles) -> InputTable:
    """Open a .csv, .tsv, .jsonl or .parquet file again after its samples were read; raises DataError if it cannot be read.

    `files` holds the declared form of CSV files, and the form detected when they were read.
    """
    if path.suffix.lower() not in SUFFIXES:
        table = table_file.read(path, "data")
        return InputTable(path, table.column_names, _list_arrow_rows(table), TableForm())
    layout = csv_layout.find(path, "data", files)
    with path.open("rb") as file:
        start = file.read(csv_layout.SAMPLE_BYTES)
    encoding = "utf-8-sig" if start.startswith(_UTF8_MARK) else layout.encoding
    first_line = start.decode(encoding, "ignore").partition("\n")[0]
    line_end = "\r\n" if first_line.endswith("\r") else "\n"
    form = TableForm(layout.sign, encoding, line_end, _has_decimal_comma(layout.sign, files.last))
    rows = layout.read_rows(path)
    return InputTable(path, next(rows), rows, form)


def write(
    table: InputTable, row_numbers: Sequence[int], predictions: Iterable[Mapping[str, Any]], file: IO[str]
) -> None:
    """Write the rows of a table with their predictions.

    Args:
        table: the input.
        row_numbers: of the samples, ascending; the row below the header is 1.
        predictions: the cells of each sample by column name, in the order of `row_numbers`, formatted by `TableForm.format`.
        file: opened with the encoding of the table's form.

    Raises:
        SpecError: if a column of the table has the name of a prediction.
    """
    writer = csv.writer(file, delimiter=table.form.sign, lineterminator=table.form.line_end)
    numbered = zip(row_numbers, predictions, strict=True)
    number, cells = next(numbered)
    added = list(cells)
    _check_names_are_free(table, added)
    writer.writerow([*table.names, *added])
    for row_number, row in enumerate(table.rows, start=1):
        is_predicted = row_number == number
        new_cells = [cells[name] for name in added] if is_predicted else [""] * len(added)
        writer.writerow([*(row[i] if i < len(row) else "" for i in range(len(table.names))), *new_cells])
        if is_predicted:
            number, cells = next(numbered, (0, {}))


def _has_decimal_comma(sign: str, dialect: Dialect | None) -> bool:
    """Return whether the numbers of the file have a decimal comma; without numbers, whether its separator is a semicolon."""
    decimal = dialect.decimal if dialect else None
    return decimal == "comma" or (decimal is None and sign == ";")


def _list_arrow_rows(table: Any) -> Iterator[list[str]]:
    for batch in table.to_batches():
        columns = [column.to_pylist() for column in batch.columns]
        for cells in zip(*columns, strict=True):
            yield ["" if cell is None else str(cell) for cell in cells]


def _check_names_are_free(table: InputTable, added: Sequence[str]) -> None:
    taken_names = [name for name in table.names if name in added]
    if taken_names:
        raise SpecError(
            f"{table.path}: has a column {taken_names[0]} already, the name of a prediction",
            "columns of other names, or JSON lines, which repeat no columns",
            "write --output FILE.jsonl, or rename the column",
        )
