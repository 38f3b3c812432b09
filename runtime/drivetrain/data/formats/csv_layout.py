"""Layout of a CSV or TSV file: separator, encoding and header, found in its first rows without pyarrow."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from drivetrain.data.formats import csv_dialect, text_encoding
from drivetrain.data.formats.csv_dialect import SIGNS, CsvFiles, find_usual_delimiter
from drivetrain.data.formats.times import is_plain_number
from drivetrain.errors import DataError
from drivetrain.job.formatting import printable
from drivetrain.system.spelling import clean_text

SAMPLE_BYTES = 1 << 18
"""Bytes at the start of a file that are read to find separator and header; more if the first two rows are longer."""
MAX_CELL_CHARACTERS = 1 << 26
"""Largest number of characters in a cell, and of bytes in the sample."""
_SEPARATOR_LINE = re.compile(r'"?sep=(.)"?[;,\t]*(?:\r\n|\r|\n|$)', re.IGNORECASE)
"""First line such as `sep=;`, which sets the separator for Excel and is not part of the table."""
_LINE_END = re.compile(r"\r\n|\n|\r")
MAX_EXAMPLE_NAMES = 6
"""Largest number of column names in the example of a header."""
BLOCK_BYTES = 1 << 22
"""Number of bytes read at once, by the parser and in the search for quotes."""
_SEPARATORS = re.escape("".join(SIGNS.values())).encode()
_ESCAPED_QUOTE = re.compile(rb'\\"(?=[^"' + _SEPARATORS + rb"\s])")
"""A backslash and a quote inside of a cell: in CSV, the quote would end the cell, and a separator would follow."""
_JSON = re.compile(rb"[{\[]")
MIN_ROWS = 5
"""Smallest number of rows needed to judge whether the first one is a header."""


@dataclass(frozen=True)
class CsvLayout:
    """Format of a file, for a parser."""

    delimiter: str
    """A key of SIGNS."""
    encoding: str
    names: tuple[str, ...]
    """Header, without `blank` names; empty if the file has no header, or Python's csv module cannot read it."""
    blank: int = 0
    """Number of columns at the end without a name or values: each row ends in separators."""
    skipped: int = 0
    """Number of lines before the header."""
    header: int = 1
    """Number of lines up to the end of the header."""
    rows: int = 0
    """Number of rows below the header in the sample."""
    is_empty: bool = False
    """Whether the file has only empty lines."""

    @property
    def sign(self) -> str:
        """Character that separates cells."""
        return SIGNS[self.delimiter]

    def read_rows(self, path: Path) -> Iterator[list[str]]:
        """Yield the rows of a file with this layout, the header first; empty lines are skipped."""
        return (cells for _, cells in csv_dialect.read_rows(path, self.sign, self.encoding, self.skipped))


def find(path: Path, key: str, files: CsvFiles, *, whole_file: bool = True) -> CsvLayout:
    """Find the layout of a file; the encoding is found from the whole file or, faster, from its start.

    Raises:
        DataError: if the encoding or the separator is not clear, or the first row is no header; names `key`.
        OSError: if it cannot be read.
    """
    encoding = text_encoding.find(path, key, files, None if whole_file else SAMPLE_BYTES)
    # The csv module's own limit is 131,072 characters; every caller that reads rows with it starts here.
    csv.field_size_limit(MAX_CELL_CHARACTERS)
    readings, skipped, named_delimiter, is_empty = _read_sample(path, encoding, files)
    declared = files.list_settings.get("delimiter") or named_delimiter
    delimiter = declared or _find_delimiter(path, key, files, readings)
    csv_dialect.note_form(path, SIGNS[delimiter], encoding, skipped)
    if delimiter not in readings:
        return CsvLayout(delimiter, encoding, (), skipped=skipped, is_empty=is_empty)
    rows, lines = readings[delimiter]
    names = rows[0]
    check_header(rows, path, key)
    blank = _count_blank_columns(names, rows[1:])
    named = names[: len(names) - blank] if _is_blank(names[len(names) - blank :]) else names
    columns = tuple(map(clean_text, named))
    return CsvLayout(delimiter, encoding, columns, blank, skipped, skipped + lines[0], len(rows) - 1)


Rows = list[list[str]]
Readings = dict[str, tuple[Rows, list[int]]]
"""Rows of a file, and the number of lines up to the end of each row, by the name of the separator."""


def _read_sample(path: Path, encoding: str, files: CsvFiles) -> tuple[Readings, int, str | None, bool]:
    """Read the start of a file, long enough for a row below the header whatever the separator is.

    Returns:
        The start, read with each separator; the lines above the header; the separator that the first line names, as in
        `sep=;`; and whether the file has only empty lines.
    """
    size = SAMPLE_BYTES
    while True:
        with path.open("rb") as file:
            start = file.read(size)
            complete = not file.read(1)
        text = start.decode("utf-8-sig" if encoding == "utf-8" else encoding, "replace")
        first = _SEPARATOR_LINE.match(text)
        skipped = int(files.list_settings.get("skip", 1 if first else 0))
        lines = _LINE_END.split(text, skipped) if skipped else [text]
        body = lines[skipped] if skipped < len(lines) else ""
        readings = {
            name: rows_and_lines
            for name, sign in SIGNS.items()
            if (rows_and_lines := _parse_rows(body, sign, complete))
        }
        if complete or size >= MAX_CELL_CHARACTERS or all(len(rows) > 1 for rows, _ in readings.values()):
            break
        size *= 4
    named_delimiter = next((name for name, sign in SIGNS.items() if first and sign == first[1]), None)
    return readings, skipped, named_delimiter, complete and not body.strip()


def _count_blank_columns(names: list[str], rows: Rows) -> int:
    """Count the columns at the end without a name and without values."""
    # Rows that end in separators have columns without a name: all their cells must be empty, too.
    blank = len(names) - len(_trim(names))
    if 0 < blank < len(names) and all(_is_blank(row[len(names) - blank :]) for row in rows):
        return blank
    # Or the header alone does not end in separators.
    longer = max((len(row) for row in rows), default=len(names)) - len(names)
    has_surplus = longer > 0 and all(len(row) - len(names) == longer and _is_blank(row[-longer:]) for row in rows)
    return longer if has_surplus else 0


def _parse_rows(text: str, sign: str, complete: bool) -> tuple[Rows, list[int]] | None:
    """Return the rows that are not empty, and the number of lines up to the end of each; None if parsing fails."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=sign)
    rows, lines = Rows(), list[int]()
    try:
        for row in reader:
            if row:
                lines.append(reader.line_num)
                rows.append(row)
    except csv.Error:
        return None
    # The last row of a sample is cut off.
    return (rows if complete or len(rows) < 2 else rows[:-1], lines) if rows else None


def _find_delimiter(path: Path, key: str, files: CsvFiles, readings: Readings) -> str:
    """Find the separator that gives most rows as many cells as the header; the usual one for a single column."""
    usual_delimiter = find_usual_delimiter(path)
    candidates = {name: rows for name, (rows, _) in readings.items() if len(_trim(rows[0])) > 1}
    if not candidates:
        # All rows below a title may have more cells than it has, which the parser reports.
        longer = (
            name for name, (rows, _) in readings.items() if len(rows) > MIN_ROWS and _are_longer(rows[-MIN_ROWS:])
        )
        return next(longer, usual_delimiter)
    if len(candidates) == 1:
        return next(iter(candidates))
    if usual_delimiter == "tab" in candidates:
        return usual_delimiter
    fitting = dict.fromkeys(candidates, 0.0)
    for name, rows in candidates.items():
        width = len(rows[0])
        # Cells beyond the header do not matter if they are blank.
        fitting[name] = sum(len(row) >= width and _is_blank(row[width:]) for row in rows) / len(rows)
    best = [name for name, share in fitting.items() if share == max(fitting.values())]
    if files.usual and files.usual.delimiter in best:
        return files.usual.delimiter
    if len(best) > 1:
        headers = {name: candidates[name][0] for name in best}
        descriptions = [
            f"{name} ({len(names)} columns: {printable(' | '.join(names), 40)})" for name, names in headers.items()
        ]
        raise DataError(
            f"the columns of {path} could be separated by {' or by '.join(descriptions)}",
            f"one of them, in {files.key('delimiter')}",
            files.advice("delimiter", best),
            key=key,
        )
    return best[0]


def _are_longer(rows: Rows) -> bool:
    """Return whether rows have the same number of cells, two or more."""
    return len(rows[0]) > 1 and all(len(row) == len(rows[0]) for row in rows)


def _trim(names: list[str]) -> list[str]:
    """Return the names without empty names at the end."""
    count = max((number for number, name in enumerate(names, start=1) if name.strip()), default=0)
    return names[:count]


def _is_blank(cells: list[str]) -> bool:
    return not any(cell.strip() for cell in cells)


def check_header(rows: Sequence[Sequence[str]], path: Path, key: str) -> None:
    """Check that the first row of a file differs from the rows below.

    It looks like them if it has a number above every column of numbers and, above a column of text, one of the texts
    below. In a file of numbers alone it does if its numbers do not ascend, as names such as years do.

    Raises:
        DataError: if it looks like them; names `key`.
    """
    first, below = rows[0], [row for row in rows[1:] if len(row) == len(rows[0]) and row != rows[0]]
    if len(below) < MIN_ROWS or len(set(first)) == 1:
        return
    columns = list(zip(*below, strict=True))
    filled = [[cell for cell in cells if cell.strip()] for cells in columns]
    numbers = [column for column, cells in enumerate(filled) if cells and all(map(is_plain_number, cells))]
    texts = [column for column in range(len(first)) if column not in set(numbers)]
    # A name above numbers is a header, whatever is above texts.
    if not all(is_plain_number(first[column]) for column in numbers):
        return
    names = ",".join(f"c{number}" for number in range(1, min(len(first), MAX_EXAMPLE_NAMES) + 1))
    if texts:
        repeated_cells = (first[column] for column in texts if first[column] in columns[column])
        repeated_cell = next((cell for cell in repeated_cells if cell.strip()), "")
        description = f"its first row `{printable(', '.join(first), 60)}` is like the rows below, which have `{printable(repeated_cell, 40)}` too"
    else:
        repeated_cell = "" if all(one < two for one, two in pairwise(map(float, first))) else first[0]
        description = f"its first row has only numbers: `{printable(', '.join(first), 60)}`"
    if repeated_cell:
        raise DataError(
            f"{path} seems to have no header: {description}",
            "a first row with the names of the columns",
            f"write a line with the names above it, such as {names}",
            key=key,
        )


def read_names(path: Path, key: str, files: CsvFiles) -> list[str] | None:
    """Return the column names; None if the file or its header cannot be read.

    Raises:
        DataError: if there is no header or no row, or if encoding, separator or names are not clear; names `key`.
    """
    try:
        layout = find(path, key, files, whole_file=False)
    except OSError:
        return None
    if layout.is_empty:
        raise no_rows_error(path, key)
    if not layout.names:
        return None
    if not layout.rows:
        raise header_only_error(path, key)
    check_names(layout.names, path, key)
    return list(layout.names)


def check_names(names: Sequence[str], path: Path, key: str) -> None:
    """Check that each column has a unique name.

    Raises:
        DataError: if a column has no name, or two have the same name; names `key`.
    """
    duplicates = [name for name, count in Counter(names).items() if count > 1]
    if duplicates:
        raise DataError(
            f"{path} has several columns named {', '.join(duplicates[:10])}",
            "one column of each name",
            "rename or remove the others",
            key=key,
        )
    if not all(name.strip() for name in names):
        number = next(i for i, name in enumerate(names, start=1) if not name.strip())
        raise DataError(
            f"column {number} of {path} has no name",
            "a name for every column",
            "name or remove it; pandas and R write row names this way: use to_csv(..., index=False) or row.names = FALSE",
            key=key,
        )


def header_only_error(path: Path, key: str) -> DataError:
    """Return the error for a file with a header and no rows."""
    return DataError(f"{path} has a header and no rows", "at least one row", "check how the file was written", key=key)


def no_rows_error(path: Path, key: str) -> DataError:
    """Return the error for a file without any text."""
    return DataError(f"{path} has no rows", "a header and at least one row", "check how the file was written", key=key)


def check_quotes(path: Path, key: str, names: Sequence[str]) -> None:
    """Check a file for quotes after a backslash, and the header for apostrophes around each name.

    Raises:
        DataError: if there are any; names `key`.
        OSError: if the file cannot be read.
    """
    if names and all(len(name) > 1 and name[0] == name[-1] == "'" for name in names):
        raise DataError(
            f"{path} has apostrophes around its cells: {printable(', '.join(names), 60)}",
            'double quotes around cells, as in "a, b"',
            "write the file again with double quotes, or without any where no cell needs them",
            key=key,
        )
    if not _has_escaped_quote(path):
        return
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            # Programs write JSON into cells, with its own backslashes.
            if _ESCAPED_QUOTE.search(line) and not _JSON.search(line):
                text = printable(line.decode("utf-8", "replace").strip(), 60)
                raise DataError(
                    f"{path} line {number}: a quote is written with a backslash: `{text}`",
                    'a quote inside of a cell is written ""',
                    'write the file again: in R with write.csv or qmethod = "double", in pandas with doublequote=True',
                    key=key,
                )


def _has_escaped_quote(path: Path) -> bool:
    """Return whether the file has a backslash before any quote, which is rare."""
    with path.open("rb") as file:
        last = b""
        while block := file.read(BLOCK_BYTES):
            if b'\\"' in last + block:
                return True
            last = block[-1:]
    return False
