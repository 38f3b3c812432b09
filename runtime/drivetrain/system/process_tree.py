"""Memory and CPU time of this process and all its descendants, and how to release what is free."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator

import psutil

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def sum_resident_bytes() -> int:
    """Resident memory of the process tree, in bytes."""
    return sum(map(_read_resident_bytes, list_process_ids()))


def sum_cpu_seconds() -> float:
    """CPU time that the processes of the tree have used so far, in seconds, with children that have ended."""
    ticks = 0
    for process in list_process_ids():
        fields = _read_text(f"/proc/{process}/stat").rpartition(")")[2].split()
        ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def list_threads(process: int) -> list[int]:
    """The ids of the threads of a process; none if it has ended."""
    with contextlib.suppress(OSError):
        return [int(name) for name in os.listdir(f"/proc/{process}/task")]
    return []


def list_process_ids() -> list[int]:
    """The ids of this process and all its descendants."""
    this_process = os.getpid()
    if os.path.exists(f"/proc/{this_process}/task/{this_process}/children"):
        return [this_process, *_list_descendants(this_process)]
    # This kernel does not list children, so all processes of the machine are asked for their parent.
    return [this_process, *(child.pid for child in psutil.Process().children(recursive=True))]


def _list_descendants(process: int) -> Iterator[int]:
    """Children are listed by the thread that started them; what ends meanwhile is skipped."""
    for thread in list_threads(process):
        for child in map(int, _read_text(f"/proc/{process}/task/{thread}/children").split()):
            yield child
            yield from _list_descendants(child)


def _read_resident_bytes(process: int) -> int:
    fields = _read_text(f"/proc/{process}/statm").split()
    if len(fields) > 1:
        return int(fields[1]) * _PAGE_BYTES
    with contextlib.suppress(psutil.Error):  # macOS has no /proc; elsewhere the process has ended
        return int(psutil.Process(process).memory_info().rss)
    return 0


def _read_text(path: str) -> str:
    try:
        # The kernel writes the names of programs as they are.
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def release_free_memory() -> None:
    """Make the allocator return free pages, which would count as used; tcmalloc keeps even the largest blocks."""
    ours = ctypes.CDLL(None)
    for name, arguments in (("MallocExtension_ReleaseFreeMemory", ()), ("malloc_trim", (0,))):
        function = getattr(ours, name, None)
        if function is not None:
            function(*arguments)
