"""What the messages of an Arrow file take in memory, from their headers: a mapped file takes nothing, compressed parts do."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

CELL = 4
"""Bytes of a cell that takes none in the file: it becomes a number or a text all the same."""
_HEADER_TYPE, _HEADER = 1, 2
_DICTIONARY, _BATCH = 2, 3
_LENGTH, _NODES, _BUFFERS, _COMPRESSION = 0, 1, 2, 3
_DATA = 1


@dataclass(frozen=True)
class _Table:
    """A table of a flatbuffer: its fields by their number, as the schemas of Arrow list them."""

    content: bytes
    at: int

    def field(self, number: int) -> int:
        """Where a field is; 0 if the table lacks it."""
        start = self.at - _number("<i", self.content, self.at)
        size = _number("<H", self.content, start)
        slot = 4 + 2 * number
        offset = _number("<H", self.content, start + slot) if slot < size else 0
        return self.at + offset if offset else 0

    def target(self, number: int) -> int:
        """Where the table or vector of a field is; 0 if the table lacks it."""
        at = self.field(number)
        return at + _number("<I", self.content, at) if at else 0

    def table(self, number: int) -> _Table:
        """The table of a field."""
        return _Table(self.content, self.target(number))


def unpacked_bytes(message: Any) -> int:
    """Bytes that the compressed parts of a pyarrow.ipc.Message take once they are unpacked, and its empty cells.

    Raises:
        OSError: if the header of the message is damaged.
    """
    content = message.metadata.to_pybytes()
    try:
        root = _Table(content, _number("<I", content, 0))
        kind = content[root.field(_HEADER_TYPE)] if root.field(_HEADER_TYPE) else 0
        if kind not in (_DICTIONARY, _BATCH):
            return 0
        batch = root.table(_HEADER) if kind == _BATCH else root.table(_HEADER).table(_DATA)
        return _batch_bytes(batch, message.body)
    except (struct.error, IndexError):
        raise OSError("the header of one of its parts is damaged") from None


def _batch_bytes(batch: _Table, body: Any) -> int:
    length, nodes = batch.field(_LENGTH), batch.target(_NODES)
    rows = _number("<q", batch.content, length) if length else 0
    size = CELL * rows * (_number("<I", batch.content, nodes) if nodes else 0)
    if not batch.field(_COMPRESSION) or not batch.field(_BUFFERS):
        return size
    buffers = batch.target(_BUFFERS)
    for index in range(_number("<I", batch.content, buffers)):
        start, packed = struct.unpack_from("<qq", batch.content, buffers + 4 + 16 * index)
        # Each compressed buffer begins with its size; -1 stands for one that is not.
        size += max(0, _number("<q", body[start : start + 8].to_pybytes(), 0)) if packed >= 8 else 0
    return size


def _number(form: str, content: bytes, at: int) -> int:
    if at < 0:
        raise IndexError(at)
    return int(struct.unpack_from(form, content, at)[0])
