"""Memory and CPU time of this process and all its descendants, and how to release what is free."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil


def sum_memory_bytes(root: Path = Path("/")) -> int:
    """Sum the memory of the process tree in bytes; a page that several processes share counts once."""
    return int(_sum(lambda process: _read_memory_bytes(process, root)))


def _read_memory_bytes(process: psutil.Process, root: Path) -> int:
    """Read the proportional memory (Pss) of a process, or its resident memory where the kernel does not tell the other."""
    try:
        rows = (root / f"proc/{process.pid}/smaps_rollup").read_text("ascii").splitlines()
        return next(int(row.split()[1]) << 10 for row in rows if row.startswith("Pss:"))
    except (OSError, StopIteration):
        return int(process.memory_info().rss)


def read_released_bytes() -> int:
    """Read by how much the resident memory of this process has been larger than it is now."""
    with (
        contextlib.suppress(OSError, StopIteration),
        open("/proc/self/status", encoding="ascii", errors="replace") as file,
    ):
        rows = {name: value for name, _, value in (line.partition(":") for line in file) if name in ("VmHWM", "VmRSS")}
        # Not ru_maxrss, which begins with the peak of the process that started this one.
        return max(0, int(rows["VmHWM"].split()[0]) - int(rows["VmRSS"].split()[0])) << 10
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # the kernel of macOS counts bytes
    return max(0, (peak if sys.platform == "darwin" else peak << 10) - int(psutil.Process().memory_info().rss))


def sum_cpu_seconds() -> float:
    """CPU time that the processes of the tree have used so far, in seconds, with children that have ended."""
    # User and system time, its own and that of its children; macOS does not count that of children.
    return _sum(lambda process: sum(process.cpu_times()[:4]))


def _sum(read: Callable[[psutil.Process], float]) -> float:
    """The sum of what is read of each process of the tree; one that has ended counts nothing."""
    total = 0.0
    for process in list_process_ids():
        with contextlib.suppress(psutil.Error):
            total += read(psutil.Process(process))
    return total


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
        children: list[int] = []
        with contextlib.suppress(OSError), open(f"/proc/{process}/task/{thread}/children", encoding="ascii") as file:
            children += map(int, file.read().split())
        for child in children:
            yield child
            yield from _list_descendants(child)


def release_free_memory() -> None:
    """Make the allocator return free pages, which would count as used; tcmalloc keeps even the largest blocks."""
    ours = ctypes.CDLL(None)
    for name, arguments in (("MallocExtension_ReleaseFreeMemory", ()), ("malloc_trim", (0,))):
        function = getattr(ours, name, None)
        if function is not None:
            function(*arguments)
