"""Splits standard input into records: rows of a CSV, JSON lines, or one path in each line.

Every record stands for one sample and is checked alone, so that a bad one costs no other. Records are handed on in
groups as they arrive: a thread reads, and a group ends when it is full, or when no more came for a moment.
"""

from __future__ import annotations

import csv
import json
import os
import queue
import re
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import BinaryIO

from drivetrain.data.formats import csv_layout, table_file
from drivetrain.data.formats.csv_dialect import CsvFiles
from drivetrain.errors import DataError
from drivetrain.job.formatting import printable
from drivetrain.system.files import parse_json
from drivetrain.system.spelling import clean_text

NAME = "standard input"
Line = tuple[int, bytes]
"""A line with its number, counted from 1."""
MAX_GROUP_RECORDS = 256
"""Largest number of records in a group."""
GROUP_SECONDS = 0.1
"""Seconds in which a group collects more records after its first."""
_CONTAINER_NOTE = "; a container can access only the project and the folders on the command line"
_SEPARATOR_LINE = re.compile(rb'"?sep=.', re.IGNORECASE)
_UTF8_MARK = b"\xef\xbb\xbf"
_UTF16 = (b"\xff\xfe", b"\xfe\xff")


@dataclass(frozen=True)
class Record:
    """One sample as it was written."""

    line: int
    """Its first line, counted from 1."""
    content: bytes
    """As written into a file by itself, with its line end; for paths the path."""
    problem: str = ""
    """Why it cannot be a sample; empty if nothing is wrong so far."""


@dataclass(frozen=True)
class Table:
    """Records that are rows of one table."""

    suffix: str
    """Of a file with these rows: .csv or .jsonl."""
    header: bytes
    """What comes before the rows in such a file."""
    records: Iterator[Record]


def read_paths(stream: BinaryIO, refused: Sequence[str]) -> Iterator[Record]:
    """One path in each line, which must be a file without a suffix in `refused`; empty lines are passed over."""
    for number, line in enumerate(stream, start=1):
        name = line.rstrip(b"\r\n")
        if not name.strip():
            continue
        path = Path(name.decode("utf-8", "surrogateescape"))
        problem = ""
        if not path.exists():
            problem = f"{path}: not there{_CONTAINER_NOTE if 'DRIVETRAIN_IMAGE' in os.environ else ''}"
        elif not path.is_file():
            problem = f"{path} is a folder; write one image in each line"
        elif path.suffix.lower() in refused:
            problem = f"{path} holds several samples; name it on the command line"
        yield Record(number, name, problem)


def read_table(stream: BinaryIO, columns: Sequence[str], files: CsvFiles) -> Table:
    """Rows of a CSV with a header, or JSON lines; the first line decides.

    Args:
        stream: the input; read up to the first row.
        columns: the columns that each row must have.
        files: how a CSV is written, as far as declared; gets nothing.

    Raises:
        DataError: if there is nothing, a column is missing in the header, or the separator is not clear.
    """
    lines: Iterator[Line] = enumerate(stream, start=1)
    skipped = list(islice(lines, int(files.list_settings.get("skip", 0))))
    if _is_object(next((line for _, line in skipped if line.strip()), b"")):
        # JSON lines have no header with lines above it; a file of them is read from its first line, too.
        lines, skipped = chain(skipped, lines), []
    above = b"".join(line for _, line in skipped)
    first = next(((number, line) for number, line in lines if line.strip()), None)
    if first is None:
        raise DataError(f"{NAME} is empty", "a CSV with a header, or JSON lines", "check the command before the pipe")
    if first[1].startswith(_UTF16):
        raise DataError(f"{NAME} is UTF-16", "UTF-8", "convert it: `... | iconv -f utf-16 -t utf-8 | drivetrain ...`")
    if first[1].removeprefix(_UTF8_MARK).lstrip().startswith((b"{", b"[")):
        return Table(".jsonl", b"", _read_objects(first, lines, columns))
    return _read_csv(above, first[1], lines, columns, files)


def _is_object(line: bytes) -> bool:
    """Whether a line is an object of JSON lines."""
    try:
        return isinstance(parse_json(line.removeprefix(_UTF8_MARK)), dict)
    except ValueError:
        return False


def store_whole(stream: BinaryIO, folder: Path) -> Path:
    """All that comes, as a .csv or .jsonl file in `folder`."""
    content = stream.read()
    start = content.removeprefix(_UTF8_MARK).lstrip()[:1]
    file = folder / f"{NAME}{'.jsonl' if start == b'{' else '.csv'}"
    file.write_bytes(content)
    return file


def group_records(
    records: Iterable[Record], max_records: int = MAX_GROUP_RECORDS, wait: float = GROUP_SECONDS
) -> Iterator[list[Record]]:
    """The records as they arrive.

    Raises:
        DataError: as the reading of a record does, after those before it.
    """
    arrivals: queue.Queue[Record | Exception | None] = queue.Queue(2 * max_records)

    def read() -> None:
        try:
            for record in records:
                arrivals.put(record)
        except (DataError, OSError, csv.Error) as error:
            arrivals.put(error)
        arrivals.put(None)

    # A daemon: it may wait for input for ever when nobody wants more output.
    threading.Thread(target=read, name="standard input", daemon=True).start()
    while isinstance(item := arrivals.get(), Record):
        group, deadline = [item], time.monotonic() + wait
        while len(group) < max_records:
            try:
                item = arrivals.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                break
            if not isinstance(item, Record):
                break
            group.append(item)
        yield group
        if not isinstance(item, Record):
            break
    if isinstance(item, DataError):
        raise item
    if isinstance(item, Exception):
        raise DataError(f"{NAME} cannot be read: {item}", "text in lines", "check the command before the pipe")


def _read_objects(first: Line, lines: Iterator[Line], columns: Sequence[str]) -> Iterator[Record]:
    for number, line in chain([(first[0], first[1].removeprefix(_UTF8_MARK))], lines):
        if not line.strip():
            continue
        try:
            value = parse_json(line)
        except ValueError as error:
            yield Record(number, line, f"no JSON: {error}: {printable(line.decode('utf-8', 'replace').strip())}")
            continue
        if isinstance(value, dict):
            value = {clean_text(name): cell for name, cell in value.items()}
        if not isinstance(value, dict):
            yield Record(number, line, "no object; write one JSON object in each line")
        elif missing := [name for name in columns if name not in value]:
            yield Record(number, line, f'has no "{missing[0]}"; write null where there is no value')
        else:
            # A key that nobody asked for must not decide how the others are read.
            content = json.dumps({name: value[name] for name in columns})
            yield Record(number, content.encode() + b"\n")


def _read_csv(above: bytes, first: bytes, lines: Iterator[Line], columns: Sequence[str], files: CsvFiles) -> Table:
    header = above + first
    if not above and _SEPARATOR_LINE.match(first.removeprefix(_UTF8_MARK)):
        header += next(lines, (0, b""))[1]
    row = next(((number, line) for number, line in lines if line.strip()), None)
    if row is None:
        raise DataError(
            f"{NAME} has no rows", "a CSV with a header, or JSON lines", "write the header first, then rows"
        )
    header = header.rstrip(b"\r\n") + b"\n"
    with TemporaryDirectory() as folder:
        sample = Path(folder, f"{NAME}.csv")
        sample.write_bytes(header + row[1])
        try:
            layout = csv_layout.find(sample, "data", files)
        except DataError as error:
            raise name_stdin(error, sample) from None
    table_file.check_wanted(layout.names, dict.fromkeys(columns, "data"), Path(NAME))
    return Table(".csv", header, _read_rows(row, lines, layout.sign, len(layout.names)))


def _read_rows(first: Line, lines: Iterator[Line], sign: str, width: int) -> Iterator[Record]:
    """Rows of a CSV; one with line breaks in quotes has several lines."""
    start, row_lines, ended = 0, list[bytes](), False

    def lines_of_row() -> Iterator[str]:
        nonlocal start, ended
        for number, line in chain([first], lines):
            start = start if row_lines else number
            row_lines.append(line)
            yield line.decode("utf-8", "surrogateescape")
        # Within quotes the reader asks for one more line.
        ended = True

    try:
        for cells in csv.reader(lines_of_row(), delimiter=sign):
            content = b"".join(row_lines)
            if ended:
                raise csv.Error
            row_lines.clear()
            if not content.strip():
                continue
            extra_cells = [cell for cell in cells[width:] if cell.strip()]
            problem = f"{len(cells)} cells, and the header has {width}" if len(cells) < width or extra_cells else ""
            yield Record(start, content.rstrip(b"\r\n") + b"\n", problem)
    except csv.Error:
        raise DataError(
            f"{NAME} line {start}: a quote is not closed, so all that follows is read as one cell",
            'quotes in pairs; a quote inside of a cell is written ""',
            "close it",
        ) from None


def name_stdin(error: DataError, file: Path) -> DataError:
    """The error of a file that stands for standard input."""
    return DataError(error.given.replace(str(file), NAME), error.possible, error.action)
