"""Writes arrays of numpy, torch and pyarrow into an open file in memory, from which other processes map them."""

from __future__ import annotations

import mmap
import os
from typing import Any

import numpy as np
import torch
from torch import Tensor

MIN_SHARED_BYTES = 1 << 20
"""Smallest array, in bytes, that is worth sharing."""
COMPARED_BYTES = 1 << 24
"""Number of bytes that are compared at a time."""


def is_large(array: Any) -> bool:
    """Whether an array is large enough to share, lies in one piece, and is not a mapped file already."""
    if isinstance(array, Tensor):
        has_own_memory = array.device.type == "cpu" and array.is_contiguous()
        return has_own_memory and array.nbytes >= MIN_SHARED_BYTES and not _is_mapped_file(array.data_ptr())
    if isinstance(array, np.ndarray):
        has_own_memory = array.flags.c_contiguous and not array.dtype.hasobject
        return has_own_memory and array.nbytes >= MIN_SHARED_BYTES and not _is_mapped_file(array.ctypes.data)
    return int(array.nbytes) >= MIN_SHARED_BYTES and not _is_mapped_file(_find_address(array))


def _find_address(column: Any) -> int:
    """The memory address of the values of a pyarrow column; 0 if it has none."""
    buffers = [buffer for chunk in column.chunks for buffer in chunk.buffers() if buffer is not None and buffer.size]
    return int(buffers[-1].address) if buffers else 0


def _is_mapped_file(address: int) -> bool:
    """Whether the memory at this address is a mapped file, which processes share already."""
    with open("/proc/self/maps", encoding="utf-8") as lines:
        for line in lines:
            address_range, _, _, _, inode, *_ = line.split(maxsplit=5)
            start, end = (int(part, 16) for part in address_range.split("-"))
            if start <= address < end:
                return inode != "0"  # memory without a file has the inode 0
    return False


def describe_kind(array: Any) -> tuple[str, ...]:
    """Type, dtype and shape of an array: two processes compare bytes only of arrays that agree in these."""
    if isinstance(array, Tensor | np.ndarray):
        return type(array).__name__, str(array.dtype), str(tuple(array.shape))
    return "column", str(array.type), str(len(array))


def align_size(size: int) -> int:
    """Round a size in bytes up to where the next array may begin: a multiple of the granularity of mappings."""
    return -(-size // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY


def append_array(array: Any, handle: int, start: int) -> int:
    """Write an array into the file, from byte `start` on; returns its size in bytes.

    Raises:
        OSError: if there is not enough memory.
    """
    size = _measure_bytes(array)
    os.ftruncate(handle, start + align_size(size))
    os.posix_fallocate(handle, start, align_size(size))  # a later lack of memory would kill the process
    with mmap.mmap(handle, size, offset=start) as mapping:
        _write_array(array, mapping)
    return size


def _measure_bytes(array: Any) -> int:
    if isinstance(array, Tensor | np.ndarray):
        return int(array.nbytes)
    import pyarrow

    byte_counter = pyarrow.MockOutputStream()
    _write_column(array, byte_counter)
    return int(byte_counter.size())


def _write_array(array: Any, mapping: mmap.mmap) -> None:
    if isinstance(array, Tensor | np.ndarray):
        np.frombuffer(mapping, np.uint8)[:] = _view_bytes(array)
        return
    import pyarrow

    sink = pyarrow.FixedSizeBufferWriter(pyarrow.py_buffer(mapping))
    _write_column(array, sink)
    sink.close()
    del sink  # it refers to the mapping, which could not be closed


def _write_column(column: Any, sink: Any) -> None:
    import pyarrow

    table = pyarrow.table({"": column})
    with pyarrow.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)


def map_array(like: Any, handle: int, start: int, size: int) -> Any:
    """Map `size` bytes of the file, from `start` on, as an array of the type and shape of `like`.

    Changes of the array stay in this process.
    """
    mapping = mmap.mmap(handle, size, access=mmap.ACCESS_COPY, offset=start)
    if isinstance(like, Tensor):
        return torch.frombuffer(mapping, dtype=like.dtype).reshape(like.shape)
    if isinstance(like, np.ndarray):
        return np.frombuffer(mapping, like.dtype).reshape(like.shape)
    import pyarrow

    return pyarrow.ipc.open_stream(pyarrow.py_buffer(mapping)).read_all().column(0)


def _view_bytes(array: Tensor | np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.uint8]]:
    if isinstance(array, Tensor):
        return array.detach().flatten().view(torch.uint8).numpy()
    return array.reshape(-1).view(np.uint8)


def have_same_content(array: Any, other: Any) -> bool:
    """Whether two arrays of the same kind have equal bytes."""
    if not isinstance(array, Tensor | np.ndarray):
        return bool(array.equals(other))
    array_bytes, other_bytes = _view_bytes(array), _view_bytes(other)
    return all(
        np.array_equal(array_bytes[start : start + COMPARED_BYTES], other_bytes[start : start + COMPARED_BYTES])
        for start in range(0, len(array_bytes), COMPARED_BYTES)
    )
