"""Finds the encoding of a text file, and the lines of a file that are not in it."""

from __future__ import annotations

import codecs
import shlex
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from drivetrain.data.formats.csv_dialect import CsvFiles
from drivetrain.errors import DataError
from drivetrain.job.formatting import printable

_UTF16_MARKS, _UTF32_MARKS = (b"\xff\xfe", b"\xfe\xff"), (b"\xff\xfe\0\0", b"\0\0\xfe\xff")
_UTF8_MARK = b"\xef\xbb\xbf"
BLOCK = 1 << 22
"""Bytes that are read at once."""
MAX_GUESS_LINES = 2000
"""Largest number of lines outside UTF-8 that are used to guess the encoding."""
_POSSIBLE_ENCODINGS = (
    *("windows-1252", "windows-1251", "windows-1250", "windows-1254", "iso-8859-15", "cp850", "mac-roman", "shift-jis"),
    "gb18030",
)
"""Encodings used to show a line if the right encoding is not clear."""
_CURRENCY = "\u00a4"
"""The sign that the bytes of a euro sign in ISO 8859-15 become in windows-1252."""
_IN_WORDS = "\u2019\u2018\u00b7\u00ad\u00a0\u2013\u2014\u00b4\u2026"
"""Signs of windows-1252 that can stand between two letters."""


def find(path: Path, key: str, files: CsvFiles, max_bytes: int | None) -> str:
    """Find the encoding of a CSV file from its first `max_bytes` bytes (None for all), in the words of the spec.

    Raises:
        DataError: if the encoding is not clear, or the declared one is wrong; names `key`.
        OSError: if the file cannot be read.
    """
    start = _read_start(path, key)
    declared = files.list_settings.get("encoding")
    marked = "utf-16" if start.startswith(_UTF16_MARKS) else "utf-8" if start.startswith(_UTF8_MARK) else None
    if marked and declared and not declared.startswith(marked):
        raise _contradiction_error(path, key, files, f"starts with the byte order mark of {marked.upper()}", marked)
    if marked == "utf-16" or (declared and declared.startswith("utf-16")):
        return declared or "utf-16"
    if not marked and start.count(b"\0") * 5 > len(start):
        little = start[1::2].count(b"\0") > start[::2].count(b"\0")
        raise DataError(
            f"{path} has zero bytes like UTF-16, and no byte order mark",
            f"text in UTF-8, or an encoding in {files.key('encoding')}",
            files.advice("encoding", ["utf-16-le" if little else "utf-16-be"]),
            key=key,
        )
    if not _is_utf8(path, max_bytes):
        if declared == "utf-8":
            check(path, key)
        return declared or _guess_encoding(path, key, files, max_bytes)
    if declared not in (None, "utf-8") and (accented := next(_iterate_non_ascii_lines(path, max_bytes), None)):
        example = printable(accented[1].decode(declared, "replace").strip())
        raise _contradiction_error(path, key, files, f"is UTF-8: in {declared} a line of it reads `{example}`", "utf-8")
    return declared or "utf-8"


def check_mark(path: Path, key: str) -> None:
    """Check that a text file is not UTF-16 with a byte order mark, nor UTF-32.

    Raises:
        DataError: if it is; names `key`.
    """
    if _read_start(path, key).startswith(_UTF16_MARKS):
        raise _conversion_error(f"{path} is UTF-16", path, "UTF-16", key)


def check(path: Path, key: str) -> None:
    """Check that a text file is UTF-8.

    Raises:
        DataError: with the first line that is not UTF-8, as it reads in other encodings.
    """
    try:
        bad, is_mixed = _find_bad_lines(path, None)
    except OSError:
        # The caller reports why the file cannot be opened.
        return
    if bad:
        raise _unclear_error(path, key, bad[0], is_mixed=is_mixed)


def _read_start(path: Path, key: str) -> bytes:
    """Read the start of a file; refuse UTF-32, with or without its byte order mark: most of its bytes are zero."""
    with path.open("rb") as file:
        start = file.read(4096)
    if start.startswith(_UTF32_MARKS) or start.count(b"\0") * 5 > 3 * len(start):
        name = "UTF-32" if start.startswith(_UTF32_MARKS) else "UTF-32BE" if start.startswith(b"\0") else "UTF-32LE"
        raise _conversion_error(f"{path} is {name}", path, name, key)
    return start


def _is_utf8(path: Path, max_bytes: int | None) -> bool:
    """Return whether a file, or its start, is UTF-8."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        with path.open("rb") as file:
            while block := file.read(BLOCK if max_bytes is None else max_bytes):
                decoder.decode(block)
                if max_bytes is not None:
                    return True
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return False
    return True


def _iterate_non_ascii_lines(path: Path, max_bytes: int | None) -> Iterator[tuple[int, bytes]]:
    """Yield the lines that are not ASCII, with their numbers from 1."""
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if max_bytes is not None and file.tell() > max_bytes and number > 1:
                return
            if not line.isascii():
                yield number, line


def _find_bad_lines(path: Path, max_bytes: int | None) -> tuple[list[tuple[int, bytes]], bool]:
    """Find the first lines that are not UTF-8, with their numbers; also returns whether others beyond ASCII are."""
    bad: list[tuple[int, bytes]] = []
    is_mixed = False
    for number, line in _iterate_non_ascii_lines(path, max_bytes):
        if _find_first_bad_byte(line) is None:
            is_mixed = True
        elif len(bad) < MAX_GUESS_LINES:
            bad.append((number, line))
    return bad, is_mixed


def _guess_encoding(path: Path, key: str, files: CsvFiles, max_bytes: int | None) -> str:
    """Guess windows-1252, which has all characters of Latin-1, if the text reads well in it."""
    bad, is_mixed = _find_bad_lines(path, max_bytes)
    if not is_mixed and files.usual and not files.usual.encoding.startswith("utf-"):
        return files.usual.encoding
    if is_mixed or not _is_western(b"".join(line for _, line in bad)):
        raise _unclear_error(path, key, bad[0], files, is_mixed=is_mixed)
    number, line = bad[0]
    note = f"{path.name}: not UTF-8, so read as windows-1252: line {number} is `{_extract(line, 'windows-1252')}`"
    files.notes.append(f"{note}; if it reads wrong, {files.advice('encoding', ['windows-1250', 'windows-1254'])}")
    return "windows-1252"


def _unclear_error(
    path: Path, key: str, bad: tuple[int, bytes], files: CsvFiles | None = None, *, is_mixed: bool
) -> DataError:
    """Return the error for a line that is not UTF-8; `files` of a kind of file whose encoding can be declared."""
    number, line = bad
    names_by_text: dict[str, str] = {}
    for name in _POSSIBLE_ENCODINGS:
        # Several encodings may show one text: the most frequent one comes first.
        with suppress(UnicodeDecodeError):
            names_by_text.setdefault(_extract(line, name), name)
    examples = ", ".join(f"`{text}` in {name}" for text, name in names_by_text.items())
    description = f"{path} line {number}: byte 0x{_find_first_bad_byte(line):02X} is not UTF-8, and its encoding is not clear: it reads {examples}"
    if is_mixed:
        description += "; the encodings are mixed, as other lines are UTF-8"
        return DataError(description, "one encoding throughout", "export the file again, all of it in UTF-8", key=key)
    if files is None:
        return _conversion_error(description, path, "NAME", key)
    return DataError(
        description,
        f"a file in UTF-8, or its encoding in {files.key('encoding')}",
        f"{files.advice('encoding', ['NAME'])}, with the name in which the line reads right",
        key=key,
    )


def _extract(line: bytes, name: str) -> str:
    """Return the part of a line around its first character beyond ASCII."""
    text = line.decode(name, "strict").strip()
    position = next((i for i, c in enumerate(text) if c > "\x7f"), 0)
    first, end = max(0, position - 25), position + 35
    return f"{'…' * (first > 0)}{printable(text[first:end])}{'…' * (end < len(text))}"


def _is_western(content: bytes) -> bool:
    """Return whether text in windows-1252 has single accents between plain letters, as in languages of Western Europe.

    Text of another encoding has runs of accented letters, capitals after small letters, or signs inside of words.
    """
    try:
        text = content.decode("windows-1252")
    except UnicodeDecodeError:
        return False
    letters = pairs = unlikely = total = 0
    for before, sign, after in zip(f" {text}", text, f"{text[1:]} ", strict=False):
        if sign < "\x80":
            continue
        total += 1
        if sign.isalpha():
            letters += 1
            pairs += after > "\x7f" and after.isalpha()
            unlikely += sign.isupper() and before.islower()
        else:
            unlikely += before.isalpha() and after.isalpha() and sign not in _IN_WORDS
    return pairs * 2 <= letters and unlikely * 10 <= total and _CURRENCY not in text


def _conversion_error(description: str, path: Path, name: str, key: str) -> DataError:
    old, new = shlex.quote(str(path)), shlex.quote(str(path.with_name(f"{path.stem}-utf8{path.suffix}")))
    return DataError(description, "a file in UTF-8", f"convert it: iconv -f {name} -t UTF-8 {old} > {new}", key=key)


def _find_first_bad_byte(line: bytes) -> int | None:
    try:
        line.decode()
    except UnicodeDecodeError as error:
        return line[error.start]
    return None


def _contradiction_error(path: Path, key: str, files: CsvFiles, description: str, right: str) -> DataError:
    """Return the error for a declared encoding that contradicts the file."""
    return DataError(
        f"{path} {description}, and {files.key('encoding')} is {files.list_settings['encoding']}",
        "the encoding of the file",
        f"{files.advice('encoding', [right])}, or leave it out",
        key=key,
    )
