"""CPU starvation: how long threads were ready to run without a CPU, as counted by the kernel."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path


def read_waited_seconds(processes: Iterable[int] | None = None, root: Path = Path("/proc")) -> float | None:
    """Read for how many seconds threads of some processes (default: this one) were ready without a CPU, in total.

    The time of threads that have ended is not included. None if the kernel does not count.
    """
    is_known, total = False, 0
    for process in [os.getpid()] if processes is None else processes:
        # A thread may end meanwhile.
        for path in (root / str(process) / "task").glob("*/schedstat"):
            with contextlib.suppress(OSError, IndexError, ValueError):
                total += int(path.read_text(encoding="ascii").split()[1])
                is_known = True
    return total / 1e9 if is_known else None


def read_busy_seconds(cpus: Iterable[int], root: Path = Path("/proc")) -> float | None:
    """Return the busy seconds of these CPUs since boot; None if the kernel does not count them."""
    try:
        fields = [line.split() for line in (root / "stat").read_text(encoding="ascii").splitlines()]
        ticks = {row[0]: [int(value) for value in row[1:9]] for row in fields if row[0].startswith("cpu")}
        # user, nice, system, idle, iowait, irq, softirq, steal: all but idle and iowait is work.
        busy_ticks = sum(sum(ticks[f"cpu{cpu}"]) - sum(ticks[f"cpu{cpu}"][3:5]) for cpu in cpus)
    except (OSError, ValueError, KeyError, IndexError):
        return None
    return busy_ticks / os.sysconf("SC_CLK_TCK")
