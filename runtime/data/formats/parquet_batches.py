"""Reads a Parquet file some rows at a time, so many that they fit into memory whatever the file makes of a few bytes.

A column may write a text of megabytes once and refer to it from a million rows (a dictionary), or from each text to the one
before it. So the rows that are decoded at once are as many as would fit if each had the longest text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runtime.data import decoded_size
from runtime.data.decoded_size import DecodedSize
from runtime.data.streaming.ranged_file import RangedFile

if TYPE_CHECKING:
    import pyarrow

PARTS = 4
"""A batch takes at most one of so many parts of the memory."""
FIRST = 64
"""Rows in which the first text of a column is looked for."""
RATIO = 1000
"""How often pages of texts and images are never packed."""
_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "FLOAT": 4, "INT64": 8, "DOUBLE": 8, "INT96": 8}


@dataclass(frozen=True)
class _Chunk:
    """One column of a row group, as its metadata describe it."""

    path: str
    """Of the column, with dots before the fields of a struct."""
    values: int
    unpacked: int
    """Bytes of its pages without compression."""
    packed: int
    """Bytes in the file."""
    width: int
    """Bytes of a value; 0 if they differ."""
    encodings: tuple[str, ...]
    repeated: bool
    """Whether a row has a list of values."""


def batches(
    source: Path | RangedFile, columns: Sequence[str], most: int, subject: str, key: str
) -> Iterator[pyarrow.RecordBatch]:
    """The rows of a file, at most `most` at a time.

    Args:
        source: the file.
        columns: those that are read.
        most: rows of the largest batch.
        subject: the file, for messages.
        key: the spec key that names it.

    Raises:
        DataError: if the lists of a column, or one of its pages, do not fit into memory.
        pyarrow.ArrowException, OSError: if the file cannot be read.
    """
    from pyarrow import parquet

    with parquet.ParquetFile(source) as opened:
        for group in range(opened.num_row_groups):
            limit = decoded_size.free_memory()
            chunks = list(_chunks(opened, group, columns))
            for chunk in chunks:
                _check(chunk, DecodedSize(f'column "{chunk.path}" of {subject}', key, limit))
            size = sum(_longest(opened, source, group, chunk, limit) for chunk in chunks if not chunk.repeated)
            rows = max(1, min(most, limit // PARTS // max(1, size)))
            yield from opened.iter_batches(rows, row_groups=[group], columns=list(columns))


def _chunks(opened: Any, group: int, columns: Sequence[str]) -> Iterator[_Chunk]:
    """The parts of the wanted columns."""
    found = opened.metadata.row_group(group)
    for index in range(found.num_columns):
        part, column = found.column(index), opened.schema.column(index)
        path = str(part.path_in_schema)
        if any(path == name or path.startswith(f"{name}.") for name in columns):
            fixed = column.length if part.physical_type == "FIXED_LEN_BYTE_ARRAY" else 0
            yield _Chunk(
                path,
                int(part.num_values),
                int(part.total_uncompressed_size),
                int(part.total_compressed_size),
                int(_WIDTHS.get(part.physical_type, fixed)),
                tuple(map(str, part.encodings)),
                column.max_repetition_level > 0,
            )


def _check(chunk: _Chunk, size: DecodedSize) -> None:
    """Check what is decoded at once, however few rows there are: a list of one row, and a page."""
    if chunk.repeated:
        # Any one row may have all values.
        size.add(chunk.values * (chunk.width or 4) + (0 if chunk.width else chunk.unpacked))
    elif chunk.unpacked > RATIO * max(1, chunk.packed):
        size.add(chunk.unpacked)


def _longest(opened: Any, source: Path | RangedFile, group: int, chunk: _Chunk, limit: int) -> int:
    """Bytes that a value of a column takes at most, or on average if each is written in full."""
    if chunk.width:
        return chunk.width
    average = chunk.unpacked // max(1, chunk.values) + 4
    if chunk.unpacked * chunk.values <= limit // PARTS or "DELTA_BYTE_ARRAY" in chunk.encodings:
        return chunk.unpacked
    if not any("DICTIONARY" in encoding for encoding in chunk.encodings):
        return average
    from pyarrow import compute, parquet

    with parquet.ParquetFile(source, metadata=opened.metadata, read_dictionary=[chunk.path]) as found:
        batch = next(found.iter_batches(FIRST, row_groups=[group], columns=[chunk.path]), None)
    longest = [
        compute.max(compute.binary_length(array.dictionary)).as_py() or 0
        for column in (batch.columns if batch is not None else ())
        for array in _dictionaries(column)
        if len(array.dictionary)
    ]
    return average + max(longest, default=chunk.unpacked)


def _dictionaries(array: Any) -> Iterator[Any]:
    """The arrays with a dictionary in one of structs and lists."""
    from pyarrow import types

    if types.is_dictionary(array.type):
        yield array
    elif types.is_struct(array.type):
        for index in range(array.type.num_fields):
            yield from _dictionaries(array.field(index))
