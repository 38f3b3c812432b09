"""Arrays of numpy, torch and pyarrow in the memory of an open file, from which other processes map them."""

from __future__ import annotations

import mmap
import os
from typing import Any

import numpy as np
import torch
from torch import Tensor

MIN_SHARED_BYTES = 1 << 20
"""Bytes of an array that is worth sharing."""
COMPARED_BYTES = 1 << 24
"""Bytes that are compared at a time."""


def is_large(array: Any) -> bool:
    """Whether an array lies in memory of its own and is worth sharing."""
    if isinstance(array, Tensor):
        plain = array.device.type == "cpu" and array.is_contiguous()
        return plain and array.nbytes >= MIN_SHARED_BYTES and not _is_file(array.data_ptr())
    if isinstance(array, np.ndarray):
        plain = array.flags.c_contiguous and not array.dtype.hasobject
        return plain and array.nbytes >= MIN_SHARED_BYTES and not _is_file(array.ctypes.data)
    return int(array.nbytes) >= MIN_SHARED_BYTES and not _is_file(_address(array))


def _address(column: Any) -> int:
    """Where the values of a pyarrow column begin."""
    buffers = [buffer for chunk in column.chunks for buffer in chunk.buffers() if buffer is not None and buffer.size]
    return int(buffers[-1].address) if buffers else 0


def _is_file(address: int) -> bool:
    """Whether memory is a mapped file, which processes share already."""
    with open("/proc/self/maps", encoding="utf-8") as lines:
        for line in lines:
            span, _, _, _, number, *_ = line.split(maxsplit=5)
            first, last = (int(part, 16) for part in span.split("-"))
            if first <= address < last:
                return number != "0"
    return False


def kind(array: Any) -> tuple[str, ...]:
    """What must be alike in two processes before their bytes are compared."""
    if isinstance(array, Tensor | np.ndarray):
        return type(array).__name__, str(array.dtype), str(tuple(array.shape))
    return "column", str(array.type), str(len(array))


def align(size: int) -> int:
    """The next size that ends where another array may begin."""
    return -(-size // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY


def append(array: Any, handle: int, start: int) -> int:
    """Write an array into the file, behind what it holds; returns its bytes.

    Raises:
        OSError: if there is not enough memory.
    """
    size = _size(array)
    os.ftruncate(handle, start + align(size))
    os.posix_fallocate(handle, start, align(size))  # a later lack of memory would kill the process
    with mmap.mmap(handle, size, offset=start) as mapping:
        _write(array, mapping)
    return size


def _size(array: Any) -> int:
    if isinstance(array, Tensor | np.ndarray):
        return int(array.nbytes)
    import pyarrow

    counted = pyarrow.MockOutputStream()
    _write_column(array, counted)
    return int(counted.size())


def _write(array: Any, mapping: mmap.mmap) -> None:
    if isinstance(array, Tensor | np.ndarray):
        np.frombuffer(mapping, np.uint8)[:] = _bytes(array)
        return
    import pyarrow

    sink = pyarrow.FixedSizeBufferWriter(pyarrow.py_buffer(mapping))
    _write_column(array, sink)
    sink.close()
    del sink


def _write_column(column: Any, sink: Any) -> None:
    import pyarrow

    table = pyarrow.table({"": column})
    with pyarrow.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)


def map_array(like: Any, handle: int, start: int, size: int) -> Any:
    """The array at a place of the file; what is written to it stays in this process."""
    mapping = mmap.mmap(handle, size, access=mmap.ACCESS_COPY, offset=start)
    if isinstance(like, Tensor):
        return torch.frombuffer(mapping, dtype=like.dtype).reshape(like.shape)
    if isinstance(like, np.ndarray):
        return np.frombuffer(mapping, like.dtype).reshape(like.shape)
    import pyarrow

    return pyarrow.ipc.open_stream(pyarrow.py_buffer(mapping)).read_all().column(0)


def _bytes(array: Tensor | np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.uint8]]:
    if isinstance(array, Tensor):
        return array.detach().flatten().view(torch.uint8).numpy()
    return array.reshape(-1).view(np.uint8)


def is_same(one: Any, two: Any) -> bool:
    """Whether two arrays of one kind have the same content."""
    if not isinstance(one, Tensor | np.ndarray):
        return bool(one.equals(two))
    first_bytes, right = _bytes(one), _bytes(two)
    return all(
        np.array_equal(first_bytes[at : at + COMPARED_BYTES], right[at : at + COMPARED_BYTES])
        for at in range(0, len(first_bytes), COMPARED_BYTES)
    )
