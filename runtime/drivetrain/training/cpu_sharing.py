"""Shares two CPUs with other programs: the two threads of a run sleep while they wait for each other, on one CPU.

At the end of each layer the threads that computed it wait for the last one. They spin meanwhile, which is fastest while both
have a CPU. If another program computes, too, one of the threads loses its CPU for whole time slices, and the other one spins
as long: a small network became up to 30 times slower (docs/measurements/neighbors-2026-11-28.md). As the work is divided
among two threads as before, the results keep their bits. A job that sets `optimize.cpu_threads` keeps a CPU for each thread.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from drivetrain.system import cpu_starvation, process_tree
from drivetrain.training.run import Run

CPUS = 2
"""Measured with so many CPUs; with more, the threads cannot share one."""
WINDOW_SECONDS, MIN_SECONDS, MAX_SECONDS = 1.0, 2.0, 60.0
"""Of a measurement; and how long a change must be due, as a moment says little: at first, and at most. It doubles with each change back."""
MIN_WAITED_SHARE = 0.15
"""Of the threads' time without a CPU, from which on they share one. Alone on the machine it is 0.02, beside another program 0.5."""
BUSY_CPUS, QUIET_CPUS = 0.3, 0.15
"""CPUs that other programs use, at least and at most, for the threads to share one and to have one each."""
IDLE_CPUS = 0.5
"""Idle CPUs from which on the threads have one each, whatever other programs use: two runs may have chosen the same."""
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
        share_cpu: called with True to let the threads sleep on one CPU, again in each window since new threads and processes
            need all of them, and with False to let them spin on all.
        report: called with a text on each change, and whether the log shows it.
    """

    def __init__(
        self, read_times: Callable[[], CpuTimes], share_cpu: Callable[[bool], None], report: Callable[[str, bool], None]
    ) -> None:
        self.read_times, self.share_cpu, self.report = read_times, share_cpu, report
        self.is_sharing = False
        self.changes = 0
        self.due_seconds = 0.0
        """How long a change is due without a break."""
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
            self.share_cpu(True)
        self.due_seconds = self.due_seconds + seconds if is_due else 0.0
        if self.due_seconds >= min(MIN_SECONDS * 2 ** (self.changes // 2), MAX_SECONDS):
            self._change(others)

    def _change(self, others: float) -> None:
        self.share_cpu(not self.is_sharing)
        self.is_sharing, self.due_seconds, self.changes = not self.is_sharing, 0.0, self.changes + 1
        text = "a CPU is idle again: each thread has one"
        if self.is_sharing:
            text = (
                f"other programs use {others:.1f} of {CPUS} CPUs: the threads share one from now on, and sleep instead of "
                "spinning; their work is divided as before, so the results are the same"
            )
        self.report(text, self.changes <= MAX_EVENTS_SHOWN)

    def close(self) -> None:
        """Let each thread have a CPU again."""
        if self.is_sharing:
            self.share_cpu(False)
            self.is_sharing = False


def watch_neighbors(run: Run) -> CpuSharing | None:
    """Share the CPUs of a run whose plan has two threads for two CPUs; None where that cannot be.

    The threads can only sleep with an OpenMP runtime that was preloaded for the trainer, which has its process to itself.
    """
    library = ctypes.CDLL(None)
    is_preloaded = run.plan.value("openmp_runtime") != "off" and "omp" in os.environ.get("LD_PRELOAD", "")
    if run.device.type != "cpu" or run.ranks.count > 1 or not is_preloaded or not hasattr(library, "kmp_set_blocktime"):
        return None
    cpus = os.sched_getaffinity(0)
    is_chosen = run.job.optimize.get("cpu_threads", "auto") == "auto"
    if not is_chosen or run.plan.value("cpu_threads") != CPUS or len(cpus) != CPUS or _read_times(cpus) is None:
        return None
    spin_milliseconds = library.kmp_get_blocktime()

    def read_times() -> CpuTimes:
        return _read_times(cpus) or CpuTimes(0.0, 0.0, 0.0)

    def share_cpu(is_sharing: bool) -> None:
        # An interruption must not leave the threads on one CPU.
        with run.signals.protect_section():
            library.kmp_set_blocktime(0 if is_sharing else spin_milliseconds)
            _place_threads(library.sched_getcpu(), cpus, is_sharing=is_sharing)

    def report(text: str, is_shown: bool) -> None:
        (run.events.add if is_shown else run.events.store)("cpu", text, run.counters.step)

    return CpuSharing(read_times, share_cpu, report)


def _place_threads(cpu: int, cpus: set[int], *, is_sharing: bool) -> None:
    """Keep the threads that compute on one CPU, and give all CPUs to those, also of children, that were started there."""
    python_threads = {thread.native_id for thread in threading.enumerate() if thread is not threading.main_thread()}
    for process in process_tree.list_process_ids():
        for thread in process_tree.list_threads(process):
            computes = is_sharing and process == os.getpid() and thread not in python_threads
            # A thread may end meanwhile.
            with contextlib.suppress(OSError):
                if computes:
                    os.sched_setaffinity(thread, {cpu})
                elif os.sched_getaffinity(thread) == {cpu}:
                    os.sched_setaffinity(thread, cpus)


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
    busy = busy_ticks / os.sysconf("SC_CLK_TCK")
    return None if waited is None else CpuTimes(waited, process_tree.sum_cpu_seconds(), busy)
