"""Writes the records of a TensorBoard event file.

A record is its length, the length's checksum, its bytes, and their checksum: the TFRecord format. TensorBoard's own
writer of it imports eighty modules more, with file systems of clouds, and takes longer than fifty steps of a small
network.
"""

from __future__ import annotations

import struct
from typing import IO

_POLYNOMIAL = 0x82F63B78
_MASK = 0xA282EAD8


def _row(value: int) -> int:
    for _ in range(8):
        value = value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)
    return value


_TABLE = tuple(map(_row, range(256)))


def masked_checksum(data: bytes) -> int:
    """The CRC-32C of data, rotated by 15 bits and shifted by a constant, as the format wants it."""
    value = 0xFFFFFFFF
    for byte in data:
        value = _TABLE[(value ^ byte) & 0xFF] ^ value >> 8
    value ^= 0xFFFFFFFF
    return ((value >> 15 | value << 17) + _MASK) & 0xFFFFFFFF


def write_record(file: IO[bytes], data: bytes) -> None:
    """Append one record.

    Raises:
        OSError: if it cannot be written.
    """
    length = struct.pack("<Q", len(data))
    file.write(length + struct.pack("<I", masked_checksum(length)) + data + struct.pack("<I", masked_checksum(data)))
