"""The header of a CSV or TSV file, read without pyarrow: before training, and where only containers have it."""

from __future__ import annotations

import csv
import shlex
from pathlib import Path

from runtime.data.formats import text_encoding
from runtime.errors import DataError

SUFFIXES = (".csv", ".tsv")
SIGNS = {"semicolons": ";", "tabs": "\t", "bars": "|"}


def names(path: Path, key: str) -> list[str] | None:
    """The column names; None where only the reader of the whole file can tell.

    Raises:
        DataError: if there is no header or no row, or another separator is used; names `key`.
    """
    text_encoding.check_mark(path, key)
    check_separator(path, key)
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = csv.reader(file, delimiter="\t" if path.suffix.lower() == ".tsv" else ",")
            filled = (row for row in rows if row)
            found = next(filled, None)
            more = next(filled, None)
    except UnicodeDecodeError:
        text_encoding.check(path, key)
        return None
    except (csv.Error, OSError):
        return None
    if found is None:
        raise no_rows(path, key)
    if more is None:
        raise DataError(f"{key}: {path} has a header and no rows", "at least one row", "check how the file was written")
    return found


def no_rows(path: Path, key: str) -> DataError:
    """The error for a file without any text."""
    return DataError(f"{key}: {path} has no rows", "a header and at least one row", "check how the file was written")


def check_separator(path: Path, key: str) -> None:
    """Check that a .csv has commas in its header, unless it has one column.

    Raises:
        DataError: if it has another separator; names `key`.
    """
    with path.open("rb") as file:
        header = file.readline(1 << 16)
    if path.suffix.lower() == ".csv" and b"," not in header:
        found = next((name for name, sign in SIGNS.items() if sign.encode() in header), "")
        if found:
            # The suggested command converts the text, so it must be UTF-8.
            text_encoding.check(path, key)
            raise DataError(
                f"{key}: the columns of {path} are separated by {found}",
                "a .csv with commas, or a .tsv with tabs",
                f"convert it: {_with_commas(path, SIGNS[found])}; numbers need a decimal point",
            )


def _with_commas(path: Path, sign: str) -> str:
    """A command that rewrites such a file with commas, and quotes where needed."""
    target = path.with_name(f"{path.stem}-commas.csv")
    code = (
        f"import csv; csv.writer(open({str(target)!r}, 'w', newline='', encoding='utf-8')).writerows("
        f"csv.reader(open({str(path)!r}, newline='', encoding='utf-8-sig'), delimiter={sign!r}))"
    )
    return shlex.join(["python3", "-c", code])
