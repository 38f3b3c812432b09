"""Checks for other programs after a second and after each epoch: lets two threads share one of two CPUs, or advises.

At the end of each layer, the threads wait for the last one. They wait in a spin loop, which is fastest while each thread
has a CPU. If another program computes too, one thread loses its CPU for whole time slices, and the other spins as long:
a small network became up to 30 times slower. Threads that share a CPU sleep instead, with bit-identical results, except
in oneDNN's own barrier for gradients of convolutions in bf16.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
import time

from drivetrain.system import cpu_starvation, process_tree
from drivetrain.training.run import Run

CPUS = 2
"""Number of CPUs for which sharing was measured; with more, the threads cannot share one."""
MIN_SECONDS = 1.0
"""Minimum time between two checks; shorter epochs are measured together."""
MIN_WAITED_SHARE = 0.15
"""Share of their time that threads must wait for a CPU before they share one: usually 0.02, next to a program 0.5."""
BUSY_SHARE, QUIET_SHARE = 0.15, 0.075
"""Share of the CPUs used by other programs from which on threads share a CPU, and up to which each gets one again."""
IDLE_CPUS = 0.5
"""Number of idle CPUs from which on each thread gets a CPU again: two runs may have moved to the same CPU."""


class CpuSharing:
    """Monitor of other programs. `look_at_neighbors` is called in the first epoch, and after the steps of each epoch.

    Args:
        run: run whose plan has several threads.
        library: OpenMP runtime whose threads can sleep; None if they cannot share a CPU.
    """

    def __init__(self, run: Run, library: ctypes.CDLL | None) -> None:
        self.run, self.library = run, library
        self.cpus = os.sched_getaffinity(0)
        self.spin_milliseconds = library.kmp_get_blocktime() if library else 0
        self.is_sharing = self.has_looked = False
        # If training becomes slower by a factor of the number of threads, a single thread would be faster.
        self.best_rate, self.reported_factor = 0.0, float(run.plan.value("cpu_threads"))
        self.begin, self.last_counts = time.monotonic(), self.read_counts()

    def read_counts(self) -> tuple[float, float, float, int]:
        """Read seconds of threads waiting for a CPU, of this process and of busy CPUs, and the number of samples."""
        waited = cpu_starvation.read_waited_seconds() or 0.0
        busy = cpu_starvation.read_busy_seconds(self.cpus) or 0.0
        return waited, process_tree.sum_cpu_seconds(), busy, self.run.counters.samples

    def look_at_neighbors(self) -> bool:
        """Let the threads share a CPU if other programs compete for both, else give each a CPU; returns whether it changed."""
        seconds = time.monotonic() - self.begin
        if seconds < MIN_SECONDS:
            return False
        self.has_looked = True
        counts = self.read_counts()
        # Each count per second since the last check.
        waited, used, busy, rate = ((b - a) / seconds for a, b in zip(self.last_counts, counts, strict=True))
        self.begin, self.last_counts = self.begin + seconds, counts
        elsewhere, count = max(0.0, busy - used), len(self.cpus)
        threads = int(self.run.plan.value("cpu_threads"))
        is_crowded = elsewhere >= BUSY_SHARE * count and waited >= MIN_WAITED_SHARE * threads
        was_sharing = self.is_sharing
        if was_sharing and (elsewhere <= QUIET_SHARE * count or busy <= count - IDLE_CPUS):
            self.share_cpu(False)
            self._report("a CPU is idle again: each thread has one")
        elif self.library and (was_sharing or is_crowded):
            if not was_sharing:
                self._report(
                    f"other programs use {elsewhere:.1f} of {count} CPUs: training is slower, with the same results"
                )
            # Repeated after each epoch, since threads and processes started on one CPU need all of them.
            self.share_cpu(True)
        is_slow = self.best_rate >= self.reported_factor * rate > 0
        if is_slow and self.is_sharing == was_sharing and (was_sharing or is_crowded):
            self.reported_factor = 2 * self.best_rate / rate
            self._report(
                f"other programs use {elsewhere:.1f} of {count} CPUs: training is {self.best_rate / rate:.1f} times slower than "
                "before; `--new --set optimize.cpu_threads=1` trains with one thread, which waits for no other"
            )
        self.best_rate = max(self.best_rate, rate)
        return self.is_sharing != was_sharing

    def share_cpu(self, is_sharing: bool) -> None:
        """Keep computing threads on one CPU, asleep while they wait; or let them spin on all CPUs."""
        assert self.library
        # An interruption must not leave the threads on one CPU.
        with self.run.signals.protect_section():
            self.library.kmp_set_blocktime(0 if is_sharing else self.spin_milliseconds)
            _place_threads(self.library.sched_getcpu(), self.cpus, is_sharing=is_sharing)
        self.is_sharing = is_sharing

    def _report(self, text: str) -> None:
        self.run.events.add("cpu", text, self.run.counters.step)

    def close(self) -> None:
        """Let each thread have a CPU again."""
        if self.is_sharing:
            self.share_cpu(False)


def watch_neighbors(run: Run) -> CpuSharing | None:
    """Watch the CPUs of a run with several threads; None in a Python program, on a GPU, or without kernel counters.

    The threads can only sleep with an OpenMP runtime that was preloaded for the trainer, on two CPUs; in a job that
    sets `optimize.cpu_threads` each thread keeps its CPU.
    """
    threads = run.plan.value("cpu_threads")
    if run.device.type != "cpu" or run.ranks.world_size > 1 or run.job.task == "python" or threads in ("off", 1):
        return None
    if not hasattr(os, "sched_getaffinity") or cpu_starvation.read_waited_seconds() is None:
        return None
    is_preloaded = run.plan.value("openmp_runtime") != "off" and "omp" in os.environ.get("LD_PRELOAD", "")
    is_free = is_preloaded and run.job.optimize.get("cpu_threads", "auto") == "auto"
    if not is_free or threads != CPUS or len(os.sched_getaffinity(0)) != CPUS:
        return CpuSharing(run, None)
    library = ctypes.CDLL(None)
    return CpuSharing(run, library if hasattr(library, "kmp_set_blocktime") else None)


def _place_threads(cpu: int, cpus: set[int], *, is_sharing: bool) -> None:
    """Keep computing threads on one CPU; give all CPUs to other threads that were started on it, also of children."""
    python_threads = {thread.native_id for thread in threading.enumerate() if thread is not threading.main_thread()}
    for process in process_tree.list_process_ids():
        for thread in process_tree.list_threads(process):
            computes = is_sharing and process == os.getpid() and thread not in python_threads
            # A thread may end in the meantime.
            with contextlib.suppress(OSError):
                if computes:
                    os.sched_setaffinity(thread, {cpu})
                elif os.sched_getaffinity(thread) == {cpu}:
                    os.sched_setaffinity(thread, cpus)
