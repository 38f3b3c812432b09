"""Format of the CSV files of a job, as declared, as detected and as stored by training; and rows of the files.

Rows are read without pyarrow, and named as `row 7 (line 8)`, with the line that an editor shows.
"""

from __future__ import annotations

import csv
import os
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

SUFFIXES = (".csv", ".tsv")
SIGNS = {"comma": ",", "semicolon": ";", "tab": "\t", "pipe": "|"}
OPTION = "--csv"
"""Command line option for files that no job names."""
MAX_COUNTED_BYTES = 1 << 26
"""Largest file, in bytes, whose lines are counted; messages on larger files name only the row."""
_forms: dict[str, tuple[str, str, int]] = {}
"""Sign between cells, encoding, and number of lines above the header of each file, by absolute path."""


def find_usual_delimiter(path: Path) -> str:
    """Find the usual delimiter of a file by its suffix."""
    return "tab" if path.suffix.lower() == ".tsv" else "comma"


@dataclass(frozen=True)
class Dialect:
    """Format of one file, in the words of the spec."""

    delimiter: str
    encoding: str
    decimal: str | None = None
    """Decimal sign: point or comma; None if no number of the file shows it."""

    def note(self, path: Path) -> str:
        """Return a note such as `train.csv: semicolons, decimal commas, windows-1252`; empty for the usual form."""
        parts = [
            f"{self.delimiter}s" if self.delimiter != find_usual_delimiter(path) else "",
            "decimal commas" if self.decimal == "comma" else "",
            self.encoding if self.encoding != "utf-8" else "",
        ]
        return f"{path.name}: {', '.join(filter(None, parts))}" if any(parts) else ""


@dataclass
class CsvFiles:
    """Format of the CSV files of a job, or of new ones for its model; readers add the parts that they detect."""

    list_settings: Mapping[str, str] = field(default_factory=dict)
    """Options that hold for every file, as in the spec: delimiter, decimal, encoding, skip."""
    option: str = "data.csv"
    """Place where options are declared: a key of the spec, or an option of the command line."""
    usual: Dialect | None = None
    """Dialect of the first file, or of training; it decides if a file can be read in two ways."""
    last: Dialect | None = None
    """Dialect of the file that was read last."""
    stored: dict[str, Any] | None = None
    """Dialect of the first file, to store with the model; empty for the usual form, None before a file is read."""
    units: Mapping[str, str] | None = None
    """Percent sign or currency by column, as in the first file or the training file; None if unknown."""
    missing: tuple[str, ...] = ()
    """Cells that stand for no value, in tables of any kind."""
    notes: list[str] = field(default_factory=list)
    """Notes for the user about the detected format."""
    keeps_zeros: bool = False
    """Whether a column of whole numbers, some with leading zeros such as 02139, is read as text: these are labels."""
    rewritten: set[str] = field(default_factory=set)
    """Text columns whose numbers were rewritten with a decimal point, so that they differ from the file."""

    def key(self, name: str) -> str:
        """Return the name of an option, for messages."""
        return f"{self.option} {name}=..." if self.option.startswith("--") else f"{self.option}.{name}"

    def advice(self, name: str, values: Sequence[str]) -> str:
        """Describe how the user can declare an option with one of these values, for messages."""
        if self.option.startswith("--"):
            return " or ".join(f"{self.option} {name}={value}" for value in values)
        return "set " + " or ".join(f"{self.option}: {{{name}: {value}}}" for value in values)

    def add(self, path: Path, dialect: Dialect, notes: Sequence[str], units: Mapping[str, str]) -> None:
        """Add the dialect, notes and units detected in a file."""
        if self.units is None:
            self.units = units
        note = dialect.note(path)
        self.notes += [new_note for new_note in (note, *notes) if new_note and new_note not in self.notes]
        self.usual = self.usual or dialect
        self.last = dialect
        if self.stored is None:
            form = {key: value for key, value in asdict(dialect).items() if value}
            self.stored = form if note or self.units else {}
            percent = sorted(name for name, sign in self.units.items() if sign == "%")
            other_units = {name: sign for name, sign in sorted(self.units.items()) if sign != "%"}
            self.stored |= {key: value for key, value in (("percent", percent), ("units", other_units)) if value}


def of_job(
    declared: Mapping[str, str], preprocessing: Mapping[str, Any], missing: Sequence[str] | None = None
) -> CsvFiles:
    """Return the files of a job; `preprocessing` comes from the run that it resumes or starts from, or is empty."""
    stored = preprocessing.get("csv", {})
    form = {key: value for key, value in stored.items() if key not in ("percent", "units")}
    units = dict.fromkeys(stored.get("percent", ()), "%") | stored.get("units", {})
    cells = tuple(missing or preprocessing.get("missing", ()))
    return CsvFiles(declared, usual=Dialect(**form) if stored else None, units=units or None, missing=cells)


def of_model(preprocessing: Mapping[str, Any], declared: Mapping[str, str]) -> CsvFiles:
    """Return the format of new files for a trained model."""
    return replace(of_job(declared, preprocessing), option=OPTION)


def note_form(path: Path, sign: str, encoding: str, skipped: int) -> None:
    """Remember the format of a file, so that `name_row` finds its lines."""
    _forms[os.path.abspath(path)] = sign, encoding, skipped


def read_rows(
    path: Path, sign: str, encoding: str, skipped: int, errors: str = "strict"
) -> Iterator[tuple[int, list[str]]]:
    """Yield the line on which each row starts and the cells of the row, the header first; empty lines are skipped."""
    # The byte order mark is not part of the first name.
    codec = "utf-8-sig" if encoding == "utf-8" else encoding
    with path.open(encoding=codec, errors=errors, newline="") as file:
        for _ in range(skipped):
            file.readline()
        rows, line = csv.reader(file, delimiter=sign), skipped + 1
        for cells in rows:
            if cells:
                yield line, cells
            line = skipped + rows.line_num + 1


def name_row(path: Path | str, row: int) -> str:
    """Return the title of a row, counted from 1 below the header, with its line if it is in a CSV file already read."""
    line = _find_line(Path(path), row)
    return f"row {row:,} (line {line:,})" if line else f"row {row:,}"


def _find_line(path: Path, row: int) -> int:
    """Find the line on which a row starts; 0 if it is not known."""
    form = _forms.get(os.path.abspath(path))
    if form is None:
        return 0
    try:
        status = os.stat(path)
        if status.st_size > MAX_COUNTED_BYTES:
            return 0
        lines = _list_row_lines(path, status.st_mtime_ns, status.st_size, form)
    except (OSError, csv.Error):
        return 0
    return lines[row] if row < len(lines) else 0


@lru_cache(maxsize=4)
def _list_row_lines(path: Path, changed: int, size: int, form: tuple[str, str, int]) -> array[int]:
    """List the line on which each row starts, the line of the header first."""
    return array("I", (line for line, _ in read_rows(path, *form, errors="replace")))
