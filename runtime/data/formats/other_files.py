"""Files that hold tables and are not read: spreadsheets and compressed files, with the command that makes a CSV of them."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from runtime.data.formats.table_splits import SUFFIXES
from runtime.errors import DataError

POSSIBLE = "a CSV or TSV with a header, a JSONL with one object in each line, a Parquet or an Arrow file"
SPREADSHEETS = {
    ".xlsx": "an Excel file",
    ".xlsm": "an Excel file",
    ".xlsb": "an Excel file",
    ".xls": "an Excel file",
    ".ods": "an OpenDocument spreadsheet",
}
_COMPRESSED = {b"\x1f\x8b": ("gzip", "gunzip -k"), b"BZh": ("bzip2", "bunzip2 -k"), b"\xfd7zXZ": ("xz", "unxz -k")}
_POSSIBLE = "a CSV, TSV, JSONL or Parquet file"
_OFFICE = '--convert-to "csv:Text - txt - csv (StarCalc):44,34,76"'
"""Commas, quotes and UTF-8, which are otherwise those of the machine's language."""


def check(path: Path, key: str) -> None:
    """Check that a file is no spreadsheet and not compressed, by its name and its first bytes.

    Raises:
        DataError: if it is, with the command that converts it; names `key`.
    """
    kind = SPREADSHEETS.get(path.suffix.lower())
    start = b""
    if path.is_file():
        with path.open("rb") as file:
            start = file.read(8)
    if path.suffix.lower() in (".csv", ".tsv"):
        if start.startswith((b"PK\x03\x04", b"\xd0\xcf\x11\xe0")):
            kind = "a spreadsheet with the name of a text file"
        for mark, (name, command) in _COMPRESSED.items():
            if start.startswith(mark):
                raise DataError(
                    f"{key}: {path} is compressed with {name}",
                    _POSSIBLE,
                    f"unpack it: mv {shlex.quote(str(path))} {shlex.quote(f'{path}.{_SUFFIX[name]}')} && "
                    f"{command} {shlex.quote(f'{path}.{_SUFFIX[name]}')}",
                )
    if kind:
        folder, given = shlex.quote(str(path.parent)), shlex.quote(str(path))
        code = f"import pandas; pandas.read_excel({str(path)!r}).to_csv({str(path.with_suffix('.csv'))!r}, index=False)"
        raise DataError(
            f"{key}: {path} is {kind}",
            _POSSIBLE,
            f"save its sheet as CSV, or: libreoffice --headless {_OFFICE} --outdir {folder} {given}; "
            f"with pandas: {shlex.join(['python3', '-c', code])}",
        )


def check_suffix(path: Path, key: str, possible: Sequence[str] = SUFFIXES) -> None:
    """Check that the name of a file says that it is a table, or another file that is `possible`.

    Raises:
        DataError: if it says something else; names `key`.
    """
    suffix = path.suffix.lower()
    if suffix in possible:
        return
    action = f"name a file that ends in {', '.join(possible)}"
    if suffix == ".json":
        lines = shlex.quote(str(path.with_suffix(".jsonl")))
        action = f"write each object of its list into a line of its own: jq -c '.[]' {shlex.quote(str(path))} > {lines}"
    raise DataError(f"{key}: {path} has an unknown file type", POSSIBLE, action)


_SUFFIX = {"gzip": "gz", "bzip2": "bz2", "xz": "xz"}
