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


def write(path: Path, rows: Iterable[bytes]) -> None:
    """Write the rows, and make them last."""
    offsets = [0]
    with path.open("wb") as file:
        for row in rows:
            file.write(row)
            offsets.append(offsets[-1] + len(row))
        file.write(np.array([*offsets, len(offsets) - 1], NUMBER).tobytes())


def overhead(rows: int) -> int:
    """Bytes of a file beside its rows."""
    return (rows + 2) * NUMBER.itemsize


def read(handle: int, rows: Sequence[int]) -> list[bytes]:
    """Some rows of an open file."""
    end = os.fstat(handle).st_size - NUMBER.itemsize
    count = int(np.frombuffer(os.pread(handle, NUMBER.itemsize, end), NUMBER)[0])
    table = end - (count + 1) * NUMBER.itemsize
    contents = []
    for row in rows:
        start, stop = _numbers(handle, table + row * NUMBER.itemsize, 2).tolist()
        contents.append(whole(handle, stop - start, start))
    return contents


def is_whole(handle: int, rows: int) -> bool:
    """Whether an open file ends as one with so many rows does; a power loss may leave it empty, cut off or as zeros."""
    table = os.fstat(handle).st_size - overhead(rows)
    return table >= 0 and _numbers(handle, table + rows * NUMBER.itemsize, 2).tolist() == [table, rows]


def whole(handle: int, size: int, offset: int) -> bytes:
    """All bytes of a part of an open file; fewer only at its end."""
    data = os.pread(handle, size, offset)
    while len(data) < size and (chunk := os.pread(handle, size - len(data), offset + len(data))):
        data += chunk
    return data


def _numbers(handle: int, offset: int, count: int) -> npt.NDArray[np.uint64]:
    return np.frombuffer(os.pread(handle, count * NUMBER.itemsize, offset), NUMBER)
