"""Keeps large arrays of the data once in the memory of a machine, instead of once in each process of a run there.

Every process has read the data by the time this module is called. The first process of a machine moves its arrays, of
numpy, torch and pyarrow, into an unnamed file in memory. The others map that file in place of their own arrays if both
hold the same bytes. Pages are shared until a process writes to them.
"""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from drivetrain.data.dataset import Dataset
from drivetrain.distributed.ranks import Ranks
from drivetrain.system import process_tree
from drivetrain.system.units import format_bytes

MIN_SHARED_BYTES = 1 << 20
"""Smallest array, in bytes, that is worth sharing."""
COMPARED_BYTES = 1 << 24
"""Number of bytes that are compared at a time."""


def is_large(array: Any) -> bool:
    """Whether an array is large enough to share, lies in one piece, and is not a mapped file already."""
    if array.nbytes < MIN_SHARED_BYTES:
        return False
    if isinstance(array, Tensor):
        return array.device.type == "cpu" and array.is_contiguous() and not _is_mapped_file(array.data_ptr())
    if isinstance(array, np.ndarray):
        has_own_memory = array.flags.c_contiguous and not array.dtype.hasobject
        return has_own_memory and not _is_mapped_file(array.ctypes.data)
    # A pyarrow column; its values are in the last of its buffers.
    buffers = [buffer for chunk in array.chunks for buffer in chunk.buffers() if buffer is not None and buffer.size]
    return not _is_mapped_file(int(buffers[-1].address) if buffers else 0)


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
    """Write an array to the end of the file, from byte `start` on; returns its size in bytes.

    Raises:
        OSError: if there is not enough memory.
    """
    os.ftruncate(handle, start)
    if isinstance(array, Tensor | np.ndarray):
        with open(handle, "ab", closefd=False) as file:
            file.write(_view_bytes(array).data)
    else:
        import pyarrow

        table = pyarrow.table({"": array})
        with (
            pyarrow.OSFile(f"/proc/self/fd/{handle}", "ab") as sink,
            pyarrow.ipc.new_stream(sink, table.schema) as writer,
        ):
            writer.write_table(table)
    return os.fstat(handle).st_size - start


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


HEADER = np.dtype(np.int64)
"""Type of the start and the size of each array, in bytes, with which the file begins."""
Change = Callable[[Any], Any]
"""Maps an array to what replaces it."""


@runtime_checkable
class ArrayHolder(Protocol):
    """A split that holds its samples in memory."""

    def change_arrays(self, change: Change) -> None:
        """Replace every numpy array, tensor and pyarrow column by what `change` returns for it."""
        ...


def share(dataset: Dataset, ranks: Ranks) -> str:
    """Share the arrays of a data set between the processes of each machine; called by all processes of the run.

    Returns:
        A note on what is shared; empty if nothing is.

    Raises:
        PeerError: if another process is gone.
    """
    if ranks.count == 1:
        return ""
    splits = (dataset.train, dataset.validation) if hasattr(os, "memfd_create") else ()  # macOS has none
    holders = [split for split in splits if isinstance(split, ArrayHolder)]
    array_kinds = [describe_kind(array) for array in _list_arrays(holders)]
    # Processes with the same two numbers are on one machine and hold arrays of the same kinds.
    machines_and_kinds = ranks.all_gather(
        [_number_machine(ranks) if array_kinds else float(ranks.number), _hash_to_float(repr(array_kinds))]
    )
    if len({tuple(entry) for entry in machines_and_kinds}) == ranks.count:
        return ""
    machine_ranks = [rank for rank, entry in enumerate(machines_and_kinds) if entry == machines_and_kinds[ranks.number]]
    is_first, handle = machine_ranks[0] == ranks.number and len(machine_ranks) > 1, -1
    # Without memory for the file each process keeps its own arrays.
    with contextlib.suppress(OSError):
        handle = _move_to_file(holders, len(array_kinds)) if is_first else -1
    first_pid, first_handle = map(int, ranks.all_gather([float(os.getpid()), float(handle)])[machine_ranks[0]])
    shared_bytes = os.fstat(handle).st_size if is_first and handle >= 0 else 0
    if not is_first and first_handle >= 0:
        with contextlib.suppress(OSError), open(f"/proc/{first_pid}/fd/{first_handle}", "rb") as memory_file:
            shared_bytes = _map_from_file(holders, len(array_kinds), memory_file.fileno())
    ranks.barrier()
    if handle >= 0:
        os.close(handle)
    if "pyarrow" in sys.modules:
        sys.modules["pyarrow"].default_memory_pool().release_unused()
    return (
        f"memory: {format_bytes(shared_bytes)} of the data once for the {len(machine_ranks)} processes of this machine"
        if shared_bytes
        else ""
    )


def _list_arrays(holders: Sequence[ArrayHolder]) -> list[Any]:
    """The large arrays of the holders, in order; an array that occurs twice is listed once."""
    arrays: list[Any] = []

    def collect(array: Any) -> Any:
        if all(array is not other for other in arrays) and is_large(array):
            arrays.append(array)
        return array

    for holder in holders:
        holder.change_arrays(collect)
    return arrays


def _replace_array(holders: Sequence[ArrayHolder], old: Any, new: Any) -> None:
    """Let `new` take the place of the array `old` in all holders."""
    for holder in holders:
        holder.change_arrays(lambda array: new if array is old else array)


def _number_machine(ranks: Ranks) -> float:
    """A number that is equal in processes of one user, machine and PID namespace, which can open each other's files."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
        return _hash_to_float(f"{boot} {os.readlink('/proc/self/ns/pid')} {os.getuid()}")
    except OSError:  # in a sandbox that hides these files each process keeps its own arrays
        return float(ranks.number)


def _hash_to_float(text: str) -> float:
    """Hash a text to 48 bits, which a float64 holds exactly; 2**32 is added so that it is no number of a rank."""
    return float(2**32 + int.from_bytes(hashlib.sha256(text.encode()).digest()[:6]))


def _move_to_file(holders: Sequence[ArrayHolder], count: int) -> int:
    """Move the arrays into a new file in memory; each is freed before the next is copied. Returns its handle.

    Raises:
        OSError: if there is not enough memory.
    """
    handle = os.memfd_create("drivetrain-data")
    spans, end = np.zeros((count, 2), HEADER), align_size(count * 2 * HEADER.itemsize)
    try:
        for index in range(count):
            array = _list_arrays(holders)[0]  # arrays that were moved are mapped files, which are no longer listed
            size = append_array(array, handle, end)
            spans[index] = end, size
            _replace_array(holders, array, map_array(array, handle, end, size))
            del array
            process_tree.release_free_memory()
            end += align_size(size)
        os.pwrite(handle, spans.tobytes(), 0)
    except OSError:
        os.close(handle)
        raise
    return handle


def _map_from_file(holders: Sequence[ArrayHolder], count: int, handle: int) -> int:
    """Replace arrays by those of the file if their content is the same; returns the number of bytes replaced.

    Raises:
        OSError: if the file cannot be mapped.
    """
    spans = np.frombuffer(os.pread(handle, count * 2 * HEADER.itemsize, 0), HEADER).reshape(count, 2)
    shared_bytes = kept_count = 0
    for start, size in spans.tolist():
        original = _list_arrays(holders)[kept_count]  # arrays that were replaced are no longer listed
        mapped = map_array(original, handle, start, size)
        if have_same_content(original, mapped):
            _replace_array(holders, original, mapped)
            shared_bytes += size
            del original
            process_tree.release_free_memory()
        else:
            kept_count += 1
    return shared_bytes
