"""Reads Arrow files: a stream, as `save_to_disk` of the datasets library writes it, or a file with an index."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from runtime.data.decoded_size import DecodedSize
from runtime.data.formats import shards
from runtime.data.formats.arrow_message import unpacked_bytes

if TYPE_CHECKING:
    import pyarrow

MARK, MARKED = b"ARROW1", 8
"""How a file with an index begins, and where the stream in it does."""


class ArrowReader:
    """Reads one file, or all files of a table in several."""

    def __init__(self, path: Path, key: str) -> None:
        self.key = key
        self.files = shards.files(path, key)

    def names(self) -> list[str]:
        """The column names."""
        from pyarrow import memory_map

        with memory_map(str(self.files[0])) as source:
            return list(_opened(source).schema.names)

    def read(self, columns: Sequence[str], text: Sequence[str]) -> pyarrow.Table:
        """Read these columns; classes by their names."""
        from pyarrow import concat_tables

        tables = [_read(path, self.key).select(list(columns)) for path in self.files]
        return concat_tables(tables, promote_options="default")

    def head(self, rows: int) -> tuple[pyarrow.Table, int]:
        """The first rows, and the number of all rows."""
        first, *others = (_read(path, self.key) for path in self.files)
        return first.slice(0, rows), len(first) + sum(map(len, others))


def schema(path: Path) -> pyarrow.Schema:
    """The columns of a file."""
    from pyarrow import memory_map

    with memory_map(str(path)) as source:
        return _opened(source).schema


def _read(path: Path, key: str) -> pyarrow.Table:
    from pyarrow import ipc, memory_map

    from runtime.data.formats.parquet_file import decoded

    with memory_map(str(path)) as source:
        start = _start(source)
        size = DecodedSize(str(path), key)
        for message in ipc.MessageReader.open_stream(source):
            size.add(unpacked_bytes(message))
        # A file with an index is a stream with an index behind it; what was counted is what is read.
        source.seek(start)
        return shards.class_names(decoded(ipc.open_stream(source).read_all(), str(path), key))


def _opened(source: pyarrow.MemoryMappedFile) -> pyarrow.RecordBatchReader:
    from pyarrow import ipc

    _start(source)
    return ipc.open_stream(source)


def _start(source: pyarrow.MemoryMappedFile) -> int:
    """Go to where the stream begins in a file: behind the mark of one with an index."""
    source.seek(MARKED if source.read(len(MARK)) == MARK else 0)
    return int(source.tell())
