"""Keeps large arrays of the data once in the memory of a machine, instead of once in each process of a run there.

Every process has read the data itself by now. The first one of a machine moves its arrays into memory without a name, which
the others map in place of theirs, if theirs hold the same bytes. Pages are shared until somebody writes to them.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from drivetrain.data import array_file
from drivetrain.data.dataset import Dataset
from drivetrain.distributed.ranks import Ranks
from drivetrain.system import process_tree
from drivetrain.system.units import format_bytes

HEADER = np.dtype(np.int64)
"""The file begins with start and size of each array."""
Change = Callable[[Any], Any]


@runtime_checkable
class ArrayHolder(Protocol):
    """Samples in memory."""

    def change_arrays(self, change: Change) -> None:
        """Replace every numpy array, tensor and pyarrow column by what `change` makes of it."""
        ...


def share(dataset: Dataset, ranks: Ranks) -> str:
    """Share the arrays of a data set between the processes of each machine; called by all processes of the run.

    Returns:
        What is shared, in words; empty if nothing is.

    Raises:
        PeerError: if another process is gone.
    """
    if ranks.count == 1:
        return ""
    splits = (dataset.train, dataset.validation) if hasattr(os, "memfd_create") else ()  # macOS has none
    holders = [split for split in splits if isinstance(split, ArrayHolder)]
    kinds = [array_file.kind(array) for array in _arrays(holders)]
    rows = ranks.all_gather([_machine(ranks) if kinds else float(ranks.number), _number(repr(kinds))])
    if len({tuple(row) for row in rows}) == ranks.count:
        return ""
    group = [rank for rank, row in enumerate(rows) if row == rows[ranks.number]]
    leads, handle = group[0] == ranks.number and len(group) > 1, -1
    with contextlib.suppress(OSError):
        handle = _fill(holders, len(kinds)) if leads else -1
    process, file = map(int, ranks.all_gather([float(os.getpid()), float(handle)])[group[0]])
    shared_bytes = os.fstat(handle).st_size if leads and handle >= 0 else 0
    if not leads and file >= 0:
        with contextlib.suppress(OSError), open(f"/proc/{process}/fd/{file}", "rb") as opened:
            shared_bytes = _map(holders, len(kinds), opened.fileno())
    ranks.barrier()
    if handle >= 0:
        os.close(handle)
    if "pyarrow" in sys.modules:
        sys.modules["pyarrow"].default_memory_pool().release_unused()
    return (
        f"memory: {format_bytes(shared_bytes)} of the data once for the {len(group)} processes of this machine"
        if shared_bytes
        else ""
    )


def _arrays(holders: Sequence[ArrayHolder]) -> list[Any]:
    """The large arrays, each once, in the order of the holders."""
    arrays: list[Any] = []

    def note(array: Any) -> Any:
        if all(array is not other for other in arrays) and array_file.is_large(array):
            arrays.append(array)
        return array

    for holder in holders:
        holder.change_arrays(note)
    return arrays


def _replace(holders: Sequence[ArrayHolder], old: Any, new: Any) -> None:
    for holder in holders:
        holder.change_arrays(lambda array: new if array is old else array)


def _machine(ranks: Ranks) -> float:
    """A number for the machine and the processes that can open each other's files there."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
        return _number(f"{boot} {os.readlink('/proc/self/ns/pid')} {os.getuid()}")
    except OSError:  # a sandbox that hides them: everybody keeps its own
        return float(ranks.number)


def _number(text: str) -> float:
    """Six bytes of a digest, which fit into a float64 exactly, beyond all ranks."""
    return float(2**32 + int.from_bytes(hashlib.sha256(text.encode()).digest()[:6]))


def _fill(holders: Sequence[ArrayHolder], count: int) -> int:
    """Move the arrays into a new file in memory; each is freed before the next is copied. Returns the open file.

    Raises:
        OSError: if there is not enough memory.
    """
    handle = os.memfd_create("drivetrain-data")
    spans, end = np.zeros((count, 2), HEADER), array_file.align(count * 2 * HEADER.itemsize)
    try:
        for number in range(count):
            array = _arrays(holders)[0]  # those that were moved are no longer listed
            size = array_file.append(array, handle, end)
            spans[number] = end, size
            _replace(holders, array, array_file.map_array(array, handle, end, size))
            del array
            process_tree.give_back()
            end += array_file.align(size)
        os.pwrite(handle, spans.tobytes(), 0)
    except OSError:
        os.close(handle)
        raise
    return handle


def _map(holders: Sequence[ArrayHolder], count: int, handle: int) -> int:
    """Replace the arrays by those of a file; returns its bytes, of those arrays that are the same.

    Raises:
        OSError: if it cannot be mapped.
    """
    spans = np.frombuffer(os.pread(handle, count * 2 * HEADER.itemsize, 0), HEADER).reshape(count, 2)
    shared_bytes = other = 0
    for start, size in spans.tolist():
        original = _arrays(holders)[other]  # those that were replaced are no longer listed
        mapped = array_file.map_array(original, handle, start, size)
        if array_file.is_same(original, mapped):
            _replace(holders, original, mapped)
            shared_bytes += size
            del original
            process_tree.give_back()
        else:
            other += 1
    return shared_bytes
