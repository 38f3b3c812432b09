"""Memory, CPU time and threads of this process and all its descendants, and how to release free memory."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

from drivetrain.errors import DeviceError


def sum_memory_bytes(root: Path = Path("/")) -> int:
    """Sum the memory of the process tree in bytes; a page that several processes share counts once, one of a file never."""
    return int(_sum(lambda process: _read_memory_bytes(process, root)))


def _read_memory_bytes(process: psutil.Process, root: Path) -> int:
    """Read the proportional memory (Pss) of a process, or its resident memory where the kernel does not tell the other.

    Pages of files do not count: where memory is short, the kernel drops them, and nothing is killed.
    """
    sizes = _read_sizes(root / f"proc/{process.pid}/smaps_rollup")
    if "Pss_Anon" in sizes:
        return sizes["Pss_Anon"] + sizes.get("Pss_Shmem", 0)
    return sizes["Pss"] if "Pss" in sizes else int(process.memory_info().rss)


def read_own_bytes(root: Path = Path("/")) -> int:
    """Read the memory of this process without pages of files: faster than `sum_memory_bytes`, and shared pages count in full."""
    sizes = _read_sizes(root / "proc/self/status")
    return sizes["RssAnon"] + sizes["RssShmem"] if "RssAnon" in sizes else int(psutil.Process().memory_info().rss)


def read_released_bytes(root: Path = Path("/")) -> int:
    """Read by how much the resident memory of this process has been larger than it is now."""
    sizes = _read_sizes(root / "proc/self/status")
    if "VmHWM" in sizes:
        # Not ru_maxrss, which begins with the peak of the process that started this one.
        return max(0, sizes["VmHWM"] - sizes["VmRSS"])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # the kernel of macOS counts bytes
    return max(0, (peak if sys.platform == "darwin" else peak << 10) - int(psutil.Process().memory_info().rss))


def _read_sizes(path: Path) -> dict[str, int]:
    """Read the lines `Name: 12 kB` of a file of the kernel, in bytes; empty if it cannot be read."""
    try:
        rows = [line.split() for line in path.read_text("ascii", "replace").splitlines()]
    except OSError:
        return {}
    return {row[0].rstrip(":"): int(row[1]) << 10 for row in rows if len(row) == 3 and row[2] == "kB"}


def sum_cpu_seconds() -> float:
    """Sum the CPU time that the processes of the tree have used so far, in seconds, with children that have ended."""
    # User and system time, its own and its children's; macOS does not count the children's.
    return _sum(lambda process: sum(process.cpu_times()[:4]))


def _sum(read: Callable[[psutil.Process], float]) -> float:
    """Return the sum of one reading of each process of the tree; a process that has ended counts nothing."""
    total = 0.0
    for process in list_process_ids():
        with contextlib.suppress(psutil.Error):
            total += read(psutil.Process(process))
    return total


def list_threads(process: int) -> list[int]:
    """List the ids of the threads of a process; none if it has ended."""
    with contextlib.suppress(OSError):
        return [int(name) for name in os.listdir(f"/proc/{process}/task")]
    return []


def list_process_ids() -> list[int]:
    """List the ids of this process and all its descendants."""
    this_process = os.getpid()
    if os.path.exists(f"/proc/{this_process}/task/{this_process}/children"):
        return [this_process, *_list_descendants(this_process)]
    # This kernel does not list children, so all processes of the machine are asked for their parent.
    return [this_process, *(child.pid for child in psutil.Process().children(recursive=True))]


def _list_descendants(process: int) -> Iterator[int]:
    """List the descendants; the kernel lists children by the thread that started them. Processes that end are skipped."""
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
        if hasattr(ours, name):
            getattr(ours, name)(*arguments)


def check_threads(count: int = 20) -> None:
    """Check that so many threads can be started here; raises DeviceError if they cannot."""
    ending = threading.Event()
    threads = [threading.Thread(target=ending.wait, daemon=True) for _ in range(count)]
    try:
        for thread in threads:
            thread.start()
    except RuntimeError:
        raise DeviceError(
            f"only {sum(map(threading.Thread.is_alive, threads))} more threads can be started here, by `ulimit -u`, `ulimit -v` or the limit of a container",
            f"{count} or more, for torch, the loader, the log and the checkpoints",
            "raise the limit, such as by `ulimit -u 4096`, `ulimit -v unlimited` or `--pids-limit 4096`, and run the same command again",
        ) from None
    finally:
        ending.set()
        for thread in filter(threading.Thread.is_alive, threads):
            thread.join()
