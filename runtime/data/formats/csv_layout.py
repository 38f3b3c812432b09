"""The layout of a CSV or TSV file: separator, encoding, header; found in its first rows, without pyarrow."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from runtime.data.formats import missing_header, row_lines, text_encoding
from runtime.data.formats.csv_dialect import SIGNS, CsvFiles
from runtime.errors import DataError
from runtime.job.formatting import printable
from runtime.system.spelling import plain

SUFFIXES = (".csv", ".tsv")
SAMPLE = 1 << 18
"""Bytes of the first rows, in which separator and header are found; more if the header or the first row is longer."""
LONGEST = 1 << 26
"""Characters of the longest cell, and bytes of the longest sample."""
_SEP = re.compile(r'"?sep=(.)"?[;,\t]*(?:\r\n|\r|\n|$)', re.IGNORECASE)
"""A first line for Excel, which is no part of the table."""
_LINE_END = re.compile(r"\r\n|\n|\r")


@dataclass(frozen=True)
class CsvLayout:
    """What a parser must know about a file."""

    delimiter: str
    """A key of SIGNS."""
    encoding: str
    names: tuple[str, ...]
    """The header, without `blank` names; empty if only the parser of the whole file can tell."""
    blank: int = 0
    """Columns at the end without name and values: each row ends in separators."""
    skipped: int = 0
    """Lines before the header."""
    header: int = 1
    """Lines up to the end of the header."""
    rows: int = 0
    """Rows below the header in the sample."""
    is_empty: bool = False
    """Whether the file has empty lines only."""

    @property
    def sign(self) -> str:
        """The character that separates cells."""
        return SIGNS[self.delimiter]


def find(path: Path, key: str, files: CsvFiles, *, whole: bool = True) -> CsvLayout:
    """The layout of a file.

    Args:
        path: a CSV or TSV file.
        key: the spec key that names it, for messages.
        files: what is declared.
        whole: whether the encoding is found from the whole file, not from its start.

    Raises:
        DataError: if the encoding or the separator cannot be told, or the first row is no header; names `key`.
        OSError: if it cannot be read.
    """
    encoding = text_encoding.find(path, key, files, None if whole else SAMPLE)
    # Python's own limit is 131,072 characters; who reads the rows with its module begins here.
    csv.field_size_limit(LONGEST)
    size = SAMPLE
    while True:
        with path.open("rb") as file:
            start = file.read(size)
            complete = not file.read(1)
        text = start.decode("utf-8-sig" if encoding == "utf-8" else encoding, "replace")
        first = _SEP.match(text)
        skipped = int(files.declared.get("skip", 1 if first else 0))
        body = text[_end_of_lines(text, skipped) :]
        readings = {name: found for name, sign in SIGNS.items() if (found := _rows(body, sign, complete))}
        if complete or size >= LONGEST or all(len(rows) > 1 for rows, _ in readings.values()):
            break
        size *= 4
    _check_above(readings, skipped, path, key, files)
    row_lines.note_skipped(path, skipped)
    named = next((name for name, sign in SIGNS.items() if first and sign == first[1]), None)
    delimiter = files.declared.get("delimiter") or named or _delimiter(path, key, files, readings)
    if delimiter not in readings:
        return CsvLayout(delimiter, encoding, (), skipped=skipped, is_empty=complete and not body.strip())
    rows, lines = readings[delimiter]
    names = rows[0]
    missing_header.check(rows, path, key)
    blank = len(names) - len(_trimmed(names))
    if blank == len(names) or not all(_is_blank(row[len(names) - blank :]) for row in rows[1:]):
        blank = 0
    longer = max((len(row) for row in rows[1:]), default=len(names)) - len(names)
    if (
        not blank
        and longer > 0
        and all(len(row) - len(names) == longer and _is_blank(row[-longer:]) for row in rows[1:])
    ):
        blank = longer
    kept = tuple(map(plain, names[: len(names) - blank] if _is_blank(names[len(names) - blank :]) else names))
    return CsvLayout(delimiter, encoding, kept, blank, skipped, skipped + lines[0], len(rows) - 1)


def _end_of_lines(text: str, count: int) -> int:
    """Where the text behind so many lines begins."""
    ends = [0, *(found.end() for found in islice(_LINE_END.finditer(text), count))]
    return ends[count] if count < len(ends) else len(text)


def _check_above(
    readings: Mapping[str, tuple[list[list[str]], list[int]]], skipped: int, path: Path, key: str, files: CsvFiles
) -> None:
    """Refuse a file whose header comes behind lines of another form: titles, or comments.

    Raises:
        DataError: if it has some; names `key`.
    """
    declared = files.declared.get("delimiter")
    tried = [found for name, found in readings.items() if declared in (None, name)]
    if not tried or any(len({len(row) for row in rows}) == 1 and len(rows[0]) > 1 for rows, _ in tried):
        return
    rows, ends = max(tried, key=lambda found: _width(found[0]))
    width = _width(rows)
    above = next(place for place, row in enumerate(rows) if len(row) == width)
    names, below = rows[above], rows[above + 1 :]
    shorter = 0 < above < len(rows) and len(_trimmed(rows[0])) < width
    if not shorter or len(below) < missing_header.LEAST or any(len(row) != width for row in below):
        return
    columns = zip(names, zip(*below, strict=True), strict=True)
    if len(set(names)) < width or any(missing_header.is_value(name, cells) for name, cells in columns):
        return
    raise DataError(
        f"{key}: {path} has lines above its header, such as `{printable(', '.join(rows[0]), 60)}`; "
        f"the header seems to be `{printable(', '.join(names), 60)}`",
        f"a header in the first line, or the number of lines above it in {files.key('skip')}",
        files.advice("skip", [str(skipped + ends[above] - 1 - sum(name.count("\n") for name in names))]),
    )


def _width(rows: list[list[str]]) -> int:
    """The most frequent number of cells in a row."""
    return Counter(map(len, rows)).most_common(1)[0][0]


def _rows(text: str, sign: str, complete: bool) -> tuple[list[list[str]], list[int]] | None:
    """Rows that are not empty, and for each the number of lines up to its end; None if they cannot be parsed."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=sign)
    rows: list[list[str]] = []
    lines: list[int] = []
    try:
        for row in reader:
            if row:
                lines.append(reader.line_num)
                rows.append(row)
    except csv.Error:
        return None
    # The last row of a sample is cut off.
    return (rows if complete or len(rows) < 2 else rows[:-1], lines) if rows else None


def _delimiter(path: Path, key: str, files: CsvFiles, readings: Mapping[str, tuple[list[list[str]], list[int]]]) -> str:
    """The separator that gives the most rows as many cells as the header; the usual one if there is one column."""
    usual = "tab" if path.suffix.lower() == ".tsv" else "comma"
    several = {name: rows for name, (rows, _) in readings.items() if len(_trimmed(rows[0])) > 1}
    if len(several) < 2:
        return next(iter(several), usual)
    if usual == "tab" in several:
        return usual
    fitting = {name: sum(_fits(row, rows[0]) for row in rows) / len(rows) for name, rows in several.items()}
    best = [name for name, share in fitting.items() if share == max(fitting.values())]
    if files.usual and files.usual.delimiter in best:
        return files.usual.delimiter
    if len(best) > 1:
        read = [f"{name} ({len(several[name][0])} columns: {_shown(several[name][0])})" for name in best]
        raise DataError(
            f"{key}: the columns of {path} could be separated by {' or by '.join(read)}",
            f"one of them, in {files.key('delimiter')}",
            files.advice("delimiter", best),
        )
    return best[0]


def _trimmed(names: list[str]) -> list[str]:
    """Names without the empty ones at the end."""
    count = len(names)
    while count and not names[count - 1].strip():
        count -= 1
    return names[:count]


def _is_blank(cells: list[str]) -> bool:
    return not any(cell.strip() for cell in cells)


def _fits(row: list[str], header: list[str]) -> bool:
    return len(row) == len(header) or (len(row) > len(header) and _is_blank(row[len(header) :]))


def _shown(names: list[str]) -> str:
    return printable(" | ".join(names), 40)
