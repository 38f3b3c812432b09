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

PARTS = 16
"""A batch takes at most one of so many parts of the memory."""
ROWS = 1 << 20
"""Rows of the largest batch of a table that is read whole."""
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

    @property
    def average(self) -> int:
        """Bytes of a value, if each is written in full."""
        return self.unpacked // max(1, self.values) + 4

    @property
    def has_dictionary(self) -> bool:
        """Whether values are written once, and rows refer to them."""
        return any("DICTIONARY" in encoding for encoding in self.encodings)


def read(source: Path | RangedFile, columns: Sequence[str], subject: str, key: str, rows: int | None = None) -> Any:
    """All rows of a file, or the first ones, as a pyarrow.Table with these columns.

    Args:
        source: the file.
        columns: those that are read.
        subject: the file, for messages.
        key: the spec key that names it.
        rows: how many; None for all.

    Raises:
        DataError: if they do not fit into memory.
        pyarrow.ArrowException, OSError: if the file cannot be read.
    """
    from pyarrow import ArrowInvalid, Table, parquet

    with parquet.ParquetFile(source) as opened:
        schema = opened.schema_arrow
        # Parts that grow while they are decoded take memory beside those that are done.
        limit = decoded_size.free_memory() * 3 // 4
        if rows is None:
            declared = DecodedSize(subject, key, limit)
            for group in range(opened.num_row_groups):
                for chunk in _chunks(opened, group, columns):
                    declared.add(_whole_bytes(opened, source, group, chunk, limit))
    if missing := sorted(set(columns) - set(schema.names)):
        raise ArrowInvalid(f'{subject} has no column "{missing[0]}"')
    size, parts, count = DecodedSize(subject, key, limit), list[Any](), 0
    for batch in batches(source, columns, rows or ROWS, subject, key):
        size.add(batch.nbytes)
        parts.append(batch.select(list(columns)))
        count += len(batch)
        if rows is not None and count >= rows:
            break
    if not parts:
        return schema.empty_table().select(list(columns))
    table = Table.from_batches(parts).replace_schema_metadata(schema.metadata)
    return table if rows is None else table.slice(0, rows)


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
            limit, width = decoded_size.free_memory(), 1
            for chunk in _chunks(opened, group, columns):
                size = DecodedSize(f'column "{chunk.path}" of {subject}', key, limit)
                if chunk.repeated:
                    # Any one row may have all values.
                    size.add(chunk.values * (chunk.width or 4))
                longest = _longest(opened, source, group, chunk, limit)
                if chunk.repeated:
                    size.add(chunk.values * longest)
                else:
                    width += longest
                    # A page is unpacked whole.
                    size.add(chunk.unpacked if chunk.unpacked > RATIO * chunk.packed else 0)
            yield from opened.iter_batches(
                max(1, min(most, limit // PARTS // width)), row_groups=[group], columns=list(columns)
            )


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


def _whole_bytes(opened: Any, source: Path | RangedFile, group: int, chunk: _Chunk, limit: int) -> int:
    """Bytes of a column of a row group; those of a text that many rows share for each of them, if they may be many."""
    declared = max(chunk.values * chunk.width, chunk.unpacked)
    if chunk.width or declared > limit or not chunk.has_dictionary:
        return declared
    if chunk.values * max(4, _longest(opened, source, group, chunk, limit)) <= limit // PARTS:
        return declared
    from pyarrow import compute, parquet

    size = 0
    rows = max(1, min(ROWS, limit // PARTS // chunk.average))
    with parquet.ParquetFile(source, metadata=opened.metadata, read_dictionary=[chunk.path]) as found:
        for batch in found.iter_batches(rows, row_groups=[group], columns=[chunk.path]):
            for array in (each for column in batch.columns for each in _dictionaries(column)):
                lengths = compute.binary_length(array.dictionary).take(array.indices)
                size += int(compute.sum(lengths.cast("int64")).as_py() or 0)
            if size > limit:
                break
    return max(size, declared)


def _longest(opened: Any, source: Path | RangedFile, group: int, chunk: _Chunk, limit: int) -> int:
    """Bytes that a value of a column takes at most, or on average if each is written in full."""
    if chunk.width:
        return chunk.width
    if chunk.unpacked * chunk.values <= limit // PARTS or "DELTA_BYTE_ARRAY" in chunk.encodings:
        return chunk.unpacked
    if not chunk.has_dictionary:
        return chunk.average
    from pyarrow import compute, parquet

    with parquet.ParquetFile(source, metadata=opened.metadata, read_dictionary=[chunk.path]) as found:
        for batch in found.iter_batches(FIRST, row_groups=[group], columns=[chunk.path]):
            arrays = [array for column in batch.columns for array in _dictionaries(column)]
            if longest := [
                compute.max(compute.binary_length(each.dictionary)).as_py() for each in arrays if len(each.dictionary)
            ]:
                return chunk.average + max(length or 0 for length in longest)
    return chunk.average


def _dictionaries(array: Any) -> Iterator[Any]:
    """The arrays with a dictionary in one of structs and lists."""
    from pyarrow import types

    if types.is_dictionary(array.type):
        yield array
    elif types.is_struct(array.type):
        for index in range(array.type.num_fields):
            yield from _dictionaries(array.field(index))
    elif types.is_nested(array.type):
        yield from _dictionaries(array.values)
