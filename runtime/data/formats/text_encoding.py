"""Finds where a text file is not UTF-8, and how to convert it; called only after a file could not be read."""

from __future__ import annotations

from pathlib import Path

from runtime.errors import DataError
from runtime.job.formatting import printable

_MARKS = (b"\xff\xfe", b"\xfe\xff")


def check_mark(path: Path, key: str) -> None:
    """Check that a text file does not start with the byte order mark of UTF-16.

    Raises:
        DataError: if it does; names `key`.
    """
    with path.open("rb") as file:
        if file.read(2) in _MARKS:
            raise _error(f"{key}: {path} is UTF-16", path, "UTF-16")


def check(path: Path, key: str) -> None:
    """Check that a text file is UTF-8.

    Raises:
        DataError: with the first line that is not, its text in the likely encoding, and how to convert the file.
    """
    bad: list[tuple[int, bytes]] = []
    accented = 0
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if not line.isascii():
                    if _first_bad(line) is None:
                        accented += 1
                    else:
                        bad.append((number, line))
    except OSError:
        # The caller reports why the file cannot be opened.
        return
    if bad:
        raise _not_utf8(path, key, bad, accented)


def _not_utf8(path: Path, key: str, bad: list[tuple[int, bytes]], accented: int) -> DataError:
    """The error for the `bad` lines; `accented` counts the other lines that are valid UTF-8 beyond ASCII."""
    number, line = bad[0]
    # Of the two, only Windows-1252 has characters from 0x80 to 0x9F.
    name = "WINDOWS-1252" if any(0x80 <= code <= 0x9F for _, other in bad for code in other) else "LATIN1"
    text = printable(line.decode(name, "replace").strip())
    given = (
        f"{key}: {path} line {number}: byte 0x{_first_bad(line):02X} is not UTF-8; in {name} the line reads `{text}`"
    )
    if accented:
        mixed = f"the encodings are mixed: lines in {name}: {len(bad):,}, lines in UTF-8: {accented:,}"
        return DataError(
            f"{given}; {mixed}",
            "a file in UTF-8 throughout",
            "export the file again, all of it in UTF-8",
        )
    return _error(given, path, name)


def _error(given: str, path: Path, name: str) -> DataError:
    target = path.with_name(f"{path.stem}-utf8{path.suffix}")
    return DataError(given, "a file in UTF-8", f"convert it: iconv -f {name} -t UTF-8 {path} > {target}")


def _first_bad(line: bytes) -> int | None:
    """Position of the first byte that is not UTF-8."""
    try:
        line.decode()
    except UnicodeDecodeError as error:
        return line[error.start]
    return None
