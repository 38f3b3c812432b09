"""The rows of an unpacked shard in the cache: their bytes one after another, so that any row is one read.

row 0, row 1, ...         bytes
offsets                   rows + 1 numbers, uint64: where each row starts, and where the last one ends
number of rows            uint64
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

NUMBER = np.dtype("<u8")
"""Type of the offsets and of the number of rows."""


def write(path: Path, rows: Iterable[bytes]) -> None:
    """Write the rows, their offsets and their number to a file."""
    offsets = [0]
    with path.open("wb") as file:
        for row in rows:
            file.write(row)
            offsets.append(offsets[-1] + len(row))
        file.write(np.array([*offsets, len(offsets) - 1], NUMBER).tobytes())


def count_overhead(rows: int) -> int:
    """Bytes of a file with so many rows in addition to the bytes of the rows."""
    return (rows + 2) * NUMBER.itemsize


def read(handle: int, rows: Sequence[int]) -> list[bytes]:
    """Read the bytes of some rows of an open file; `rows` are their numbers."""
    end = os.fstat(handle).st_size - NUMBER.itemsize
    count = int(np.frombuffer(os.pread(handle, NUMBER.itemsize, end), NUMBER)[0])
    offsets_start = end - (count + 1) * NUMBER.itemsize
    contents = []
    for row in rows:
        start, stop = _read_numbers(handle, offsets_start + row * NUMBER.itemsize, 2).tolist()
        contents.append(read_bytes(handle, stop - start, start))
    return contents


def is_whole(handle: int, rows: int) -> bool:
    """Whether an open file ends like one with so many rows; a power loss may leave it empty, cut off or full of zeros."""
    offsets_start = os.fstat(handle).st_size - count_overhead(rows)
    return offsets_start >= 0 and _read_numbers(handle, offsets_start + rows * NUMBER.itemsize, 2).tolist() == [
        offsets_start,
        rows,
    ]


def read_bytes(handle: int, size: int, offset: int) -> bytes:
    """Read `size` bytes of an open file from `offset` on; fewer only at its end (one `pread` may return fewer)."""
    data = os.pread(handle, size, offset)
    while len(data) < size and (chunk := os.pread(handle, size - len(data), offset + len(data))):
        data += chunk
    return data


def _read_numbers(handle: int, offset: int, count: int) -> npt.NDArray[np.uint64]:
    return np.frombuffer(os.pread(handle, count * NUMBER.itemsize, offset), NUMBER)
