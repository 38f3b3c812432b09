"""Reads Arrow files: a stream, as `save_to_disk` of the datasets library writes it, or a file with an index."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow
from pyarrow import concat_tables, ipc, memory_map

from drivetrain.data.decoded_size import DecodedSize
from drivetrain.data.formats import shards
from drivetrain.data.formats.parquet_file import BATCH_ROWS, decode

INDEX_MARK = b"ARROW1"
"""First bytes of a file with an index."""
STREAM_START = 8
"""Offset of the stream in a file with an index."""
EMPTY_CELL_BYTES = 4
"""Bytes of memory counted for every cell: one that takes no bytes in the file also becomes a number or a text."""


class ArrowReader:
    """Reader of one file, or of all files of a table in several files."""

    def __init__(self, path: Path, key: str) -> None:
        self.key = key
        self.files = shards.files(path, key)

    def names(self) -> list[str]:
        """Return the column names."""
        return list(schema(self.files[0]).names)

    def read(self, columns: Sequence[str], text: Sequence[str]) -> pyarrow.Table:
        """Read these columns, with class names in place of class numbers."""
        tables = [_read(path, self.key).select(list(columns)) for path in self.files]
        return concat_tables(tables, promote_options="default")

    def head(self, rows: int) -> tuple[pyarrow.Table, int]:
        """Read the first rows; also returns the number of all rows."""
        first, *other_tables = (_read(path, self.key) for path in self.files)
        return first.slice(0, rows), len(first) + sum(map(len, other_tables))


def schema(path: Path) -> pyarrow.Schema:
    """Return the columns of a file."""
    with memory_map(str(path)) as source:
        _seek_stream(source)
        return ipc.open_stream(source).schema


def _read(path: Path, key: str) -> pyarrow.Table:
    with memory_map(str(path)) as source:
        _seek_stream(source)
        size, reader = DecodedSize(str(path), key), ipc.open_stream(source)
        tables, allocated = [decode(reader.schema.empty_table())], pyarrow.total_allocated_bytes()
        for batch in reader:
            for rows in pyarrow.Table.from_batches([batch]).to_batches(BATCH_ROWS):
                tables.append(decode(pyarrow.Table.from_batches([rows])))
                # Uncompressed cells stay in the mapped file and take no memory.
                before, allocated = allocated, pyarrow.total_allocated_bytes()
                size.add(max(0, allocated - before) + EMPTY_CELL_BYTES * rows.num_rows * rows.num_columns)
        return shards.class_names(concat_tables(tables))


def _seek_stream(source: pyarrow.MemoryMappedFile) -> int:
    """Seek the start of the stream, which in a file with an index comes after the mark; returns the offset."""
    source.seek(STREAM_START if source.read(len(INDEX_MARK)) == INDEX_MARK else 0)
    return int(source.tell())
