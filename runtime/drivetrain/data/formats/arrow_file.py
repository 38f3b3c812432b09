"""Reads Arrow files: a stream, as `save_to_disk` of the datasets library writes it, or a file with an index."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow
from pyarrow import concat_tables, ipc, memory_map

from drivetrain.data.decoded_size import DecodedSize
from drivetrain.data.formats import shards
from drivetrain.data.formats.parquet_file import decode

INDEX_MARK = b"ARROW1"
"""First bytes of a file with an index."""
STREAM_START = 8
"""Offset of the stream in a file with an index."""
EMPTY_CELL_BYTES = 4
"""Bytes of memory counted for a cell that takes none in the file, since it becomes a number or a text too."""
# Numbers of the fields of a message, its kinds, the fields of a batch of rows, and that of a dictionary with its batch.
_HEADER_TYPE, _HEADER = 1, 2
_DICTIONARY, _BATCH = 2, 3
_LENGTH, _NODES, _BUFFERS, _COMPRESSION = 0, 1, 2, 3
_DATA = 1


class ArrowReader:
    """Reads one file, or all files of a table in several."""

    def __init__(self, path: Path, key: str) -> None:
        self.key = key
        self.files = shards.files(path, key)

    def names(self) -> list[str]:
        """The column names."""
        return list(schema(self.files[0]).names)

    def read(self, columns: Sequence[str], text: Sequence[str]) -> pyarrow.Table:
        """Read these columns; classes by their names."""
        tables = [_read(path, self.key).select(list(columns)) for path in self.files]
        return concat_tables(tables, promote_options="default")

    def head(self, rows: int) -> tuple[pyarrow.Table, int]:
        """The first rows, and the number of all rows."""
        first, *other_tables = (_read(path, self.key) for path in self.files)
        return first.slice(0, rows), len(first) + sum(map(len, other_tables))


def schema(path: Path) -> pyarrow.Schema:
    """The columns of a file."""
    with memory_map(str(path)) as source:
        _seek_stream(source)
        return ipc.open_stream(source).schema


def _read(path: Path, key: str) -> pyarrow.Table:
    with memory_map(str(path)) as source:
        start = _seek_stream(source)
        size = DecodedSize(str(path), key)
        for message in ipc.MessageReader.open_stream(source):
            size.add(count_unpacked_bytes(message))
        # A file with an index is a stream with an index behind it; what was counted is what is read.
        source.seek(start)
        return shards.class_names(decode(ipc.open_stream(source).read_all(), str(path), key))


def _seek_stream(source: pyarrow.MemoryMappedFile) -> int:
    """Go to where the stream begins in a file, behind the mark of a file with an index; returns the offset."""
    source.seek(STREAM_START if source.read(len(INDEX_MARK)) == INDEX_MARK else 0)
    return int(source.tell())


@dataclass(frozen=True)
class _FlatbufferTable:
    """A table of a flatbuffer: its fields by their number, as the schemas of Arrow list them."""

    content: bytes
    at: int
    """Offset of the table in `content`."""

    def field(self, number: int) -> int:
        """Offset of a field in `content`; 0 if the table lacks it."""
        start = self.at - _unpack_number("<i", self.content, self.at)
        size = _unpack_number("<H", self.content, start)
        slot = 4 + 2 * number
        offset = _unpack_number("<H", self.content, start + slot) if slot < size else 0
        return self.at + offset if offset else 0

    def target(self, number: int) -> int:
        """Offset of the table or vector that a field refers to; 0 if the table lacks the field."""
        at = self.field(number)
        return at + _unpack_number("<I", self.content, at) if at else 0

    def table(self, number: int) -> _FlatbufferTable:
        """The table of a field."""
        return _FlatbufferTable(self.content, self.target(number))


def count_unpacked_bytes(message: Any) -> int:
    """Bytes that the compressed parts of a pyarrow.ipc.Message take once they are unpacked, and its empty cells.

    Raises:
        OSError: if the header of the message is damaged.
    """
    content = message.metadata.to_pybytes()
    try:
        root = _FlatbufferTable(content, _unpack_number("<I", content, 0))
        kind = content[root.field(_HEADER_TYPE)] if root.field(_HEADER_TYPE) else 0
        if kind not in (_DICTIONARY, _BATCH):
            return 0
        batch = root.table(_HEADER) if kind == _BATCH else root.table(_HEADER).table(_DATA)
        return _count_batch_bytes(batch, message.body)
    except (struct.error, IndexError):
        raise OSError("the header of one of its parts is damaged") from None


def _count_batch_bytes(batch: _FlatbufferTable, body: Any) -> int:
    """Bytes of a batch of rows: its compressed buffers once they are unpacked, and its cells."""
    length, nodes = batch.field(_LENGTH), batch.target(_NODES)
    rows = _unpack_number("<q", batch.content, length) if length else 0
    size = EMPTY_CELL_BYTES * rows * (_unpack_number("<I", batch.content, nodes) if nodes else 0)
    if not batch.field(_COMPRESSION) or not batch.field(_BUFFERS):
        return size
    buffers = batch.target(_BUFFERS)
    for index in range(_unpack_number("<I", batch.content, buffers)):
        start, packed = struct.unpack_from("<qq", batch.content, buffers + 4 + 16 * index)
        # Each compressed buffer begins with its size; -1 stands for one that is not.
        size += max(0, _unpack_number("<q", body[start : start + 8].to_pybytes(), 0)) if packed >= 8 else 0
    return size


def _unpack_number(form: str, content: bytes, at: int) -> int:
    if at < 0:
        raise IndexError(at)
    return int(struct.unpack_from(form, content, at)[0])
