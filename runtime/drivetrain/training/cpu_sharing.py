"""Shares two CPUs with other programs: the two threads of a run sleep while they wait for each other, on one CPU.

At the end of each layer the threads that computed it wait for the last one. They spin meanwhile, which is fastest while both
have a CPU. If another program computes, too, one of the threads loses its CPU for whole time slices, and the other one spins
as long: a small network became up to 30 times slower (docs/measurements/neighbors-2026-11-28.md). As the work is divided
among two threads as before, the results keep their bits.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from drivetrain.system import cpu_starvation, process_tree

if TYPE_CHECKING:
    from drivetrain.training.run import Run

CPUS = 2
"""Measured with so many CPUs; with more, the threads cannot share one."""
WINDOW_SECONDS = 1.0
MIN_WINDOWS, MAX_WINDOWS = 2, 60
"""Consecutive windows that must agree, as a moment says little; twice as many after each change back, and at most."""
MIN_WAITED_SHARE = 0.15
"""Of the threads' time without a CPU, from which on they share one. Alone on the machine it is below 0.05."""
BUSY_CPUS, QUIET_CPUS = 0.3, 0.15
"""CPUs that other programs use, at least and at most, for the threads to share one and to have one each."""
IDLE_CPUS = 0.5
"""Idle CPUs from which on the threads have one each, whatever other programs use: two runs may have chosen the same."""
SPIN_MILLISECONDS = 1
"""KMP_BLOCKTIME of `openmp_runtime`."""
MAX_EVENTS_SHOWN = 4
"""Changes that have a line in the log; later ones are in events.jsonl."""


@dataclass(frozen=True)
class CpuTimes:
    """CPU time in seconds, each since some moment in the past."""

    waited: float
    """For which the threads of this process were ready without a CPU."""
    used: float
    """That this process and its children have used."""
    busy: float
    """For which the CPUs were busy."""


class CpuSharing:
    """Call `adapt` after each step.

    Args:
        read_times: returns the CPU times until now.
        share_cpu: called with True to let the threads sleep on one CPU, and with False to let them spin on all.
        report: called with a text on each change, and whether the log shows it.
    """

    def __init__(
        self, read_times: Callable[[], CpuTimes], share_cpu: Callable[[bool], None], report: Callable[[str, bool], None]
    ) -> None:
        self.read_times, self.share_cpu, self.report = read_times, share_cpu, report
        self.is_sharing = False
        self.changes = 0
        self.agreeing_windows = 0
        """Consecutive windows that ask for a change."""
        self.window_start, self.times = time.monotonic(), read_times()

    def adapt(self) -> None:
        """Let the threads share a CPU if other programs compete for both, and have one each if they do not."""
        seconds = time.monotonic() - self.window_start
        if seconds < WINDOW_SECONDS:
            return
        before, now = self.times, self.read_times()
        self.window_start, self.times = self.window_start + seconds, now
        others = max(0.0, (now.busy - before.busy) - (now.used - before.used)) / seconds
        waited_share = (now.waited - before.waited) / (CPUS * seconds)
        is_due = others >= BUSY_CPUS and waited_share >= MIN_WAITED_SHARE
        if self.is_sharing:
            # Threads on one CPU wait for each other, so their waiting does not say whether the others are still at work.
            is_due = others <= QUIET_CPUS or now.busy - before.busy <= (CPUS - IDLE_CPUS) * seconds
        self.agreeing_windows = self.agreeing_windows + 1 if is_due else 0
        if self.agreeing_windows >= min(MIN_WINDOWS << self.changes // 2, MAX_WINDOWS):
            self._change(others, waited_share)

    def _change(self, others: float, waited_share: float) -> None:
        self.is_sharing, self.agreeing_windows = not self.is_sharing, 0
        self.share_cpu(self.is_sharing)
        self.changes += 1
        text = "other programs no longer compete for the CPUs: each thread has one again"
        if self.is_sharing:
            text = (
                f"other programs use {others:.1f} of {CPUS} CPUs, and the threads wait for one {waited_share:.0%} of the time: "
                "they share one from now on, and sleep instead of spinning; same results, to the bit"
            )
        self.report(text, self.changes <= MAX_EVENTS_SHOWN)

    def close(self) -> None:
        """Let each thread have a CPU again."""
        if self.is_sharing:
            self.is_sharing = False
            self.share_cpu(False)


def start_sharing(run: Run) -> CpuSharing | None:
    """Share the CPUs of a run of two threads on two CPUs, if its OpenMP runtime can let them sleep; None otherwise."""
    libc = ctypes.CDLL(None)
    set_spin_time = getattr(libc, "kmp_set_blocktime", None)
    if run.device.type != "cpu" or run.ranks.count > 1 or not hasattr(os, "sched_getaffinity"):
        return None
    cpus = os.sched_getaffinity(0)
    if set_spin_time is None or run.plan.value("cpu_threads") != CPUS or len(cpus) != CPUS or _read_times(cpus) is None:
        return None

    def read_times() -> CpuTimes:
        return _read_times(cpus) or CpuTimes(0.0, 0.0, 0.0)

    def share_cpu(is_sharing: bool) -> None:
        set_spin_time(0 if is_sharing else SPIN_MILLISECONDS)
        # Processes that were started meanwhile have inherited the one CPU.
        processes = [os.getpid()] if is_sharing else process_tree.list_process_ids()
        _allow_cpus(processes, {libc.sched_getcpu()} if is_sharing else cpus)

    def report(text: str, is_shown: bool) -> None:
        (run.events.add if is_shown else run.events.store)("cpu", text, run.counters.step)

    return CpuSharing(read_times, share_cpu, report)


def _allow_cpus(processes: list[int], cpus: set[int]) -> None:
    """Allow the threads of some processes these CPUs."""
    for process in processes:
        # A process or thread may end meanwhile.
        with contextlib.suppress(OSError):
            for thread in os.listdir(f"/proc/{process}/task"):
                with contextlib.suppress(OSError):
                    os.sched_setaffinity(int(thread), cpus)


def _read_times(cpus: set[int], root: Path = Path("/proc")) -> CpuTimes | None:
    """The CPU times of this process and of these CPUs; None if the kernel does not count them."""
    waited = cpu_starvation.read_waited_seconds(root=root)
    try:
        fields = [line.split() for line in (root / "stat").read_text(encoding="ascii").splitlines()]
        ticks = {row[0]: [int(value) for value in row[1:9]] for row in fields if row[0].startswith("cpu")}
        # user, nice, system, idle, iowait, irq, softirq, steal: all but idle and iowait is work.
        busy_ticks = sum(sum(ticks[f"cpu{cpu}"]) - sum(ticks[f"cpu{cpu}"][3:5]) for cpu in cpus)
    except (OSError, ValueError, KeyError, IndexError):
        return None
    if waited is None:
        return None
    return CpuTimes(waited, process_tree.sum_cpu_seconds(), busy_ticks / os.sysconf("SC_CLK_TCK"))
