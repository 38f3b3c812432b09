"""The records of a shard of JSON lines, also compressed: one object in each line."""

from __future__ import annotations

import gzip
import io
import json
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

from drivetrain.data import decoded_size
from drivetrain.data.streaming.shard import Shard, unreadable_error
from drivetrain.job.formatting import printable
from drivetrain.system import spelling

POSSIBLE = 'a complete file with one JSON object in each line: {"text": "...", "label": "..."}'
MAX_LINE_BYTES = 64 << 20
"""Bytes of the longest line: a compressed one of gigabytes takes kilobytes in the file."""
LONG_LINE_BYTES = 1 << 20
"""Bytes of a line from which on it is checked whether its decoded objects fit into memory."""
MAX_OBJECT_FACTOR = 24
"""Most bytes of decoded objects per byte of a line; a list of empty lists takes that many."""


def read(file: Path, shard: Shard, key: str) -> Iterator[dict[str, Any]]:
    """Yield all objects of a shard, in their order, with their keys in one form of Unicode. Empty lines are skipped.

    Args:
        file: the shard on this machine; its name does not matter.
        shard: its name says how it is compressed.

    Raises:
        DataError: if the shard cannot be read.
    """
    try:
        with _open(file, shard.name.lower()) as lines:
            line_number = 0
            while line := lines.readline(MAX_LINE_BYTES + 1):
                line_number += 1
                _check_size(line, line_number, shard, key)
                if line.strip():
                    yield _parse_line(line, line_number)
    except (OSError, EOFError, zlib.error, ValueError, MemoryError) as error:
        raise unreadable_error(shard, key, error, POSSIBLE) from None


def _check_size(line: bytes, line_number: int, shard: Shard, key: str) -> None:
    """Refuse a line that is longer than MAX_LINE_BYTES or whose objects might not fit into memory."""
    if len(line) > MAX_LINE_BYTES:
        raise ValueError(f"line {line_number:,} has more than {MAX_LINE_BYTES:,} bytes")
    if len(line) > LONG_LINE_BYTES:
        decoded_size.check_fits(MAX_OBJECT_FACTOR * len(line), f"line {line_number:,} of shard {shard.address}", key)


def _parse_line(line: bytes, line_number: int) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except UnicodeDecodeError:
        raise ValueError(f"line {line_number:,} is not UTF-8: {_excerpt(line)}") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"line {line_number:,}, column {error.colno}: {error.msg.lower()}: {_excerpt(line)}") from None
    except RecursionError:
        raise ValueError(f"line {line_number:,} is nested too deeply: {_excerpt(line)}") from None
    if not isinstance(record, dict):
        raise ValueError(f"line {line_number:,} is no object: {_excerpt(line)}")
    # ASCII has one spelling only, and most keys are ASCII.
    if all(map(str.isascii, record)):
        return record
    composed = {spelling.clean_text(name): cell for name, cell in record.items()}
    if len(composed) < len(record):
        raise ValueError(f"line {line_number:,} has a key in two spellings that look alike: {_excerpt(line)}")
    return composed


def _excerpt(line: bytes) -> str:
    """The beginning of a line, for messages."""
    return printable(line.decode("utf-8", "replace").strip())


@contextmanager
def _open(file: Path, name: str) -> Iterator[BinaryIO]:
    """Open a shard for reading lines; the ending of `name` decides how it is decompressed."""
    if name.endswith(".zst"):
        import pyarrow

        with pyarrow.input_stream(str(file), compression="zstd") as stream:
            yield io.BufferedReader(stream)
    elif name.endswith(".gz"):
        with gzip.open(file) as packed:
            yield cast(BinaryIO, packed)
    else:
        with file.open("rb") as plain:
            yield plain
