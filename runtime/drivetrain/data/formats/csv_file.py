"""Reads CSV and TSV files with a header: any separator, encoding and form of numbers that `csv_dialect` can name."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from pyarrow import ArrowInvalid, Table, compute, csv, string

from drivetrain.data.formats import csv_dialect, csv_layout, number_format, text_encoding
from drivetrain.data.formats.csv_dialect import CsvFiles, Dialect
from drivetrain.errors import DataError
from drivetrain.job.formatting import printable

LARGEST_BLOCK = 1 << 28
"""Largest number of bytes read at once, for a file with long rows."""
TAIL_BYTES = 1 << 16
"""Bytes at the end of a file that are searched for empty rows."""
MAX_LISTED_ROWS = 5
"""Largest number of rows of wrong length in a message."""
_NAMELESS = "\0"
"""Prefix of the names given to columns that have no name in the file."""


class CsvReader:
    """Reader of one file.

    Raises:
        DataError: if it has no header, or its encoding or separator is not clear; names `key`.
    """

    def __init__(self, path: Path, key: str, files: CsvFiles) -> None:
        self.path, self.key, self.files = path, key, files
        self.layout = csv_layout.find(path, key, files)
        self.nameless = [f"{_NAMELESS}{i}" for i in range(self.layout.blank)]
        self.block = csv_layout.BLOCK_BYTES
        csv_layout.check_quotes(path, key, self.layout.names)
        if not self.layout.names:
            raise csv_layout.no_rows_error(path, key)

    def names(self) -> list[str]:
        """Return the column names in the header."""
        return list(self.layout.names)

    def read(self, columns: Sequence[str], text: Sequence[str]) -> Any:
        """Read these columns; columns in `text` are kept as written.

        Raises:
            DataError: if rows have different numbers of cells, a quote is not closed, or numbers are not clear.
        """
        parse = partial(self._parse, csv.read_csv)
        # An unclosed quote can only be seen in the last column; elsewhere its row is too short.
        last_column = [*self.layout.names, *self.nameless][-1]
        extra_columns = self.nameless or [name for name in (last_column,) if name not in columns]
        table = parse([*columns, *extra_columns], [*text, *extra_columns])
        self._check_last(table[last_column])
        for name in self.nameless:
            self._check_nameless(table[name])
        table = table.select(list(columns))
        empty_count = min(self._count_empty_rows(), len(table))
        return self._read_numbers(table.slice(0, len(table) - empty_count), text, parse, empty_count)

    def head(self, rows: int) -> tuple[Any, int]:
        """Read the first rows; also returns the approximate number of all rows.

        Raises:
            DataError: if rows have different numbers of cells, or numbers are not clear; names `key`.
        """

        def block(path: Path, **options: Any) -> Any:
            with csv.open_csv(path, **options) as reader:
                if (batch := next(iter(reader), None)) is None:
                    raise csv_layout.header_only_error(self.path, self.key)
                return Table.from_batches([batch])

        parse = partial(self._parse, block)
        table = parse(self.names(), ())
        size = self.path.stat().st_size
        count = max(len(table), len(table) * size // min(self.block, size))
        return self._read_numbers(table, (), parse, 0).slice(0, rows), count

    def _read_numbers(self, table: Any, text: Sequence[str], parse: number_format.Parse, empty_count: int) -> Any:
        """Read the numbers of a parsed table in the form of the file, and add the detected form to `files`."""
        layout = self.layout
        table, decimal, number_notes, units = number_format.read(
            table, text, parse, self.key, self.path, layout.delimiter, self.files
        )
        notes = [f"{self.path.name}: {note}" for note in number_notes]
        if empty_count:
            notes.append(f"{self.path.name}: {empty_count:,} empty rows at the end are left out")
        self.files.add(self.path, Dialect(layout.delimiter, layout.encoding, decimal), notes, units)
        return table

    def _parse(self, parse: Any, columns: Sequence[str], text: Sequence[str]) -> Any:
        # A mark of a missing value must not turn a column of dates or of truth values into text.
        nothing = [*csv.ConvertOptions().null_values, *self.files.missing]
        conversion = csv.ConvertOptions(
            include_columns=list(columns), column_types=dict.fromkeys(text, string()), null_values=nothing
        )
        options = {"read_options": self._read_options(), "parse_options": self._parse_options()}
        try:
            return parse(self.path, convert_options=conversion, **options)
        except ArrowInvalid:
            self._check_lengths()
            if self._enlarge_blocks():
                return self._parse(parse, columns, text)
            if not self.layout.rows:
                raise csv_layout.header_only_error(self.path, self.key) from None
            raise
        except UnicodeDecodeError as error:
            if error.reason == "truncated data":  # the encoding is right
                raise
            raise DataError(
                f"{self.path} has a byte 0x{error.object[error.start]:02X} that {self.layout.encoding} does not have",
                f"text in one encoding, which {self.files.key('encoding')} can name",
                "write the file again in UTF-8, or name its encoding",
                key=self.key,
            ) from None

    def _enlarge_blocks(self) -> bool:
        """Enlarge the blocks, since a row may not fit into one; return whether the file is to be read again."""
        block, self.block = self.block, min(LARGEST_BLOCK, max(self.block, self.path.stat().st_size + 1))
        return self.block > block

    def _read_options(self, **options: object) -> object:
        names, lines = [*self.layout.names, *self.nameless], self.layout.header
        return csv.ReadOptions(
            encoding=self.layout.encoding, block_size=self.block, column_names=names, skip_rows=lines, **options
        )

    def _parse_options(self, **options: object) -> object:
        return csv.ParseOptions(delimiter=self.layout.sign, newlines_in_values=True, **options)

    def _check_lengths(self) -> None:
        """Read the file again in one thread to find the rows that are too short or too long."""
        if self.layout.encoding == "utf-8":
            # The message shows the text of rows with a wrong length.
            text_encoding.check(self.path, self.key)
        wrong_rows: list[str] = []
        expected: list[int] = []

        def note(row: Any) -> str:
            # The parser also counts the lines above the header.
            row_title = csv_dialect.name_row(self.path, row.number - self.layout.header)
            wrong_rows.append(f"{row_title}: {row.actual_columns} cells, {printable(row.text)}")
            expected.append(row.expected_columns)
            return "skip"

        options = {
            "read_options": self._read_options(use_threads=False),
            "parse_options": self._parse_options(invalid_row_handler=note),
        }
        # If no row is wrong, the failure has another cause, which the caller reports.
        with contextlib.suppress(ArrowInvalid), csv.open_csv(self.path, **options) as reader:
            for _ in reader:
                pass
        if wrong_rows:
            remainder = [f"and {len(wrong_rows) - MAX_LISTED_ROWS:,} more"] if len(wrong_rows) > MAX_LISTED_ROWS else []
            head = f"{self.path} has {expected[0]} columns; rows of another length: {len(wrong_rows):,}"
            name = self.layout.delimiter
            raise DataError(
                "\n    ".join([head, *wrong_rows[:MAX_LISTED_ROWS], *remainder]),
                "as many cells in each row as in the header",
                f"put quotes around cells that contain a {name}, and add missing {name}s; if there are lines above the header, such "
                f"as titles, {self.files.advice('skip', ['their number'])}",
                key=self.key,
            )

    def _check_last(self, column: Any) -> None:
        """Check the last row: the parser accepts an unclosed quote, which turns the rest of the file into one cell."""
        cell = column[-1].as_py() if len(column) else None
        if not isinstance(cell, str) or "\n" not in cell:
            return
        if not self._read_end(64).rstrip().endswith(b'"'):
            raise DataError(
                f"{self.path} {csv_dialect.name_row(self.path, len(column))}: a quote is not closed, so the rest of the file is read as "
                "one cell",
                'quotes in pairs; a quote inside of a cell is written ""',
                "close it",
                key=self.key,
            )

    def _check_nameless(self, column: Any) -> None:
        filled = compute.not_equal(compute.utf8_trim_whitespace(column), "").to_numpy(zero_copy_only=False)
        if filled.any():
            row = int(filled.argmax())
            raise DataError(
                f"{self.path} has a column without a name at its end, and {csv_dialect.name_row(self.path, row + 1)} has "
                f"`{printable(str(column[row].as_py()), 40)}` there",
                "a name for every column that has values",
                "name the column in the header, or remove it",
                key=self.key,
            )

    def _count_empty_rows(self) -> int:
        """Count the rows at the end that are separators only, as spreadsheets write for cleared rows."""
        sign = re.escape(self.layout.sign.encode())
        lines = re.split(rb"\r\n|\n|\r", self._read_end(TAIL_BYTES).rstrip(b"\r\n"))
        count = 0
        while count < len(lines) - 1 and re.fullmatch(rb"[ ]*(" + sign + rb"[ ]*)+", lines[-1 - count]):
            count += 1
        return count

    def _read_end(self, size: int) -> bytes:
        """Read the last bytes of the file, without the zero bytes of UTF-16."""
        with self.path.open("rb") as file:
            file.seek(max(0, self.path.stat().st_size - size))
            return file.read().replace(b"\0", b"")
