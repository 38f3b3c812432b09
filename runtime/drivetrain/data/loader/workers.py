"""Runs worker processes that prepare batches ahead. A worker that dies or hangs costs time, but changes no batch.

The samples of a batch and their random numbers depend on the batch alone, so replacement workers continue with the
next batch that training needs.
"""

from __future__ import annotations

import errno
import functools
import gc
import multiprocessing
import multiprocessing.queues
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from drivetrain.data.dataset import JointTargets, Split, longest_samples
from drivetrain.data.stateless_random import Ids
from drivetrain.errors import PeerError
from drivetrain.job.workload import BATCHES_PER_WORKER
from drivetrain.system.console import say
from drivetrain.system.signals import die_with_parent, handle_as_worker
from drivetrain.system.units import format_bytes

Item = TypeVar("Item")
POLL_SECONDS = 5
"""Seconds between checks that the workers are alive."""
HANG_SECONDS = 300.0
"""Number of seconds without a batch after which the workers count as hung."""
MAX_STARTS = 3
"""Largest number of starts of workers in an epoch."""
SHARED_MEMORY = Path("/dev/shm")
FULL_EXIT_CODE = errno.ENOSPC
"""Exit code of a worker that found no space in shared memory."""
# End of a message about workers that are not replaced.
FALLBACK_NOTE = "from now on the main process prepares the batches"


class SharedMemory:
    """Limit of the workers by shared memory, for all `processes` (ranks); each batch size is measured once."""

    def __init__(self, processes: int = 1) -> None:
        self.processes = processes
        self._workers_by_batch: dict[tuple[int, int], tuple[Split, int]] = {}

    def workers(self, split: Split, count: int, requested: int) -> tuple[int, str]:
        """Return the number of requested workers that have room, and the reason for fewer, or an empty text.

        The reason is given only when a batch size is measured for the first time.
        """
        free_bytes = _free_shared_memory() if requested else None
        if free_bytes is None:
            return requested, ""
        # The split is stored with its id, so that it stays alive and no other object can get the same id.
        key = (id(split), count)
        if key in self._workers_by_batch:
            return min(requested, self._workers_by_batch[key][1]), ""
        batch_bytes = count * _measure_sample(split)
        fitting_workers = free_bytes // self.processes // max(1, BATCHES_PER_WORKER * batch_bytes)
        self._workers_by_batch[key] = split, fitting_workers
        if fitting_workers >= requested:
            return requested, ""
        consequence = (
            f"are prepared by {fitting_workers} instead of {requested} loader workers"
            if fitting_workers
            else "are prepared without loader workers"
        )
        return (
            fitting_workers,
            f"{SHARED_MEMORY} has {format_bytes(free_bytes)} free: batches of {count:,} samples, {format_bytes(batch_bytes)} each, {consequence}",
        )


def _free_shared_memory() -> int | None:
    """Return the free bytes of shared memory; None if there is no /dev/shm."""
    try:
        status = os.statvfs(SHARED_MEMORY)
    except OSError:
        return None
    return status.f_bavail * status.f_frsize


def _measure_sample(split: Split) -> int:
    ids = longest_samples(split, 1)
    tensors: list[Tensor] = []
    if isinstance(split, JointTargets):
        inputs, targets = split.samples(ids)
        tensors += [*inputs, *targets.values()]
    else:
        tensors += [*split.gather(ids), *(y[torch.from_numpy(ids)] for y in split.targets.values())]
    return sum(x.numel() * x.element_size() for x in tensors)


@dataclass(frozen=True)
class WorkerSettings:
    """Settings for preparing batches ahead."""

    workers: int
    """Number of worker processes."""
    pin: bool = False
    """Whether batches are copied to pinned memory."""
    report: Callable[[str], None] = say
    hang_seconds: float = HANG_SECONDS

    def prepare(self, source: Dataset[Item], groups: Sequence[Ids]) -> Generator[Item]:
        """Yield `source[ids]` for each group of ids, in order; lost workers are replaced MAX_STARTS - 1 times.

        After that, this process prepares the remaining batches itself, unless the workers hung.

        Raises:
            PeerError: if the last of MAX_STARTS sets of workers hangs.
        """
        delivered = 0
        for start in range(1, MAX_STARTS + 1):
            pool = _WorkerPool(self, source, groups[delivered:])
            try:
                for item in pool:
                    yield item
                    delivered += 1
                return
            except _SharedMemoryFull as error:
                self.report(f"{error} before batch {delivered + 1}; {FALLBACK_NOTE}")
                hung = False
                break
            except _WorkerLost as error:
                hung = isinstance(error, _WorkerHung)
                if start < MAX_STARTS:
                    consequence = "new workers continue from there"
                else:
                    # Samples that hang a worker would also hang this process, and nothing would kill it.
                    consequence = "no new workers are started" if hung else FALLBACK_NOTE
                self.report(f"{error} before batch {delivered + 1}; {consequence}")
            finally:
                pool.end()
        if hung:
            raise PeerError(
                f"loader workers hung {MAX_STARTS} times, the last time at batch {delivered + 1}",
                "data that can be read in time",
                "check the disk or network that holds the data, or set optimize.loader_workers: 0",
            )
        yield from (source[ids] for ids in groups[delivered:])


class _WorkerLost(Exception):
    """Error for a worker that has died."""


class _WorkerHung(_WorkerLost):
    """Error for no batch within HANG_SECONDS seconds."""


class _SharedMemoryFull(_WorkerLost):
    """Error for a batch that does not fit into shared memory."""


class _Loader(DataLoader[Any]):
    def check_worker_number_rationality(self) -> None:
        """Skip torch's warning at every start, which counts the current CPUs (training/cpu_sharing.py changes them)."""


class _WorkerPool:
    """Workers that are started together, through one torch DataLoader."""

    def __init__(self, settings: WorkerSettings, source: Dataset[Any], groups: Sequence[Ids]) -> None:
        self.hang_seconds, other_processes = settings.hang_seconds, set(multiprocessing.active_children())
        loader = _Loader(
            source,
            batch_size=None,
            sampler=groups,
            num_workers=settings.workers,
            prefetch_factor=2,
            pin_memory=settings.pin,
            timeout=min(POLL_SECONDS, settings.hang_seconds),
            worker_init_fn=functools.partial(_initialize_worker, os.getpid()),
        )
        handler = signal.getsignal(signal.SIGCHLD)
        # The forked workers start with the garbage collector off.
        collects = gc.isenabled()
        gc.disable()
        try:
            self.items = iter(loader)
        finally:
            if collects:
                gc.enable()
        # torch's handler could raise anywhere in the trainer, even in the middle of an optimizer step.
        signal.signal(signal.SIGCHLD, handler)
        self.processes = set(multiprocessing.active_children()) - other_processes
        self.waiting_since: float | None = None
        """Start of the current wait for a batch, by time.monotonic(); None while the trainer does not wait."""
        self.hung, self.ended = False, threading.Event()
        threading.Thread(target=self._watch_for_hang, name="loader guard", daemon=True).start()

    def __iter__(self) -> Iterator[Any]:
        while True:
            self.waiting_since = waiting_since = time.monotonic()
            while True:
                try:
                    item = next(self.items)
                    break
                except StopIteration:
                    return
                except (RuntimeError, OSError, EOFError) as error:
                    self._raise_failure(error, time.monotonic() - waiting_since)
            self.waiting_since = None
            yield item

    def _watch_for_hang(self) -> None:
        """Kill workers that hang: if one stops while sending a batch, the trainer is in a read without a timeout."""
        while not self.ended.wait(POLL_SECONDS / 2):
            waiting_since = self.waiting_since
            if waiting_since is not None and time.monotonic() - waiting_since > self.hang_seconds + POLL_SECONDS:
                self.hung = True
                self._kill()
                return

    def _raise_failure(self, error: Exception, waited: float) -> None:
        """Raise the reason why the workers delivered no batch; return if the trainer should continue to wait."""
        if self.hung:
            raise _WorkerHung(f"the loader workers hung for {waited:.0f} s") from None
        if not isinstance(error, RuntimeError):  # a pipe closes a moment before its process ends
            for process in self.processes:
                process.join(0.5)
        dead = [process for process in self.processes if process.exitcode is not None]
        if any(process.exitcode == FULL_EXIT_CODE for process in dead):
            raise _SharedMemoryFull("a loader worker found no space in /dev/shm for its batch") from None
        if dead:
            raise _WorkerLost(f"a loader worker died (exit {dead[0].exitcode})") from None
        if "timed out" not in str(error):
            raise error
        if waited >= self.hang_seconds:
            raise _WorkerHung(f"the loader workers hung for {waited:.0f} s") from None

    def end(self) -> None:
        """Kill all workers, including stopped ones, and wait until they have ended."""
        self.ended.set()
        self._kill()
        for process in self.processes:
            process.join()

    def _kill(self) -> None:
        for process in self.processes:
            process.kill()  # a stopped process handles no other signal


def _initialize_worker(parent: int, number: int) -> None:
    # A worker must not collect objects of the parent: collecting an abandoned epoch's loader would end its workers.
    gc.freeze()
    gc.enable()
    handle_as_worker()
    die_with_parent(parent)
    # By default Python prints the error and drops the batch; the trainer would wait until the worker counts as hung.
    multiprocessing.queues.Queue._on_queue_feeder_error = staticmethod(_end_after_failed_send)  # type: ignore[attr-defined]


def _end_after_failed_send(error: Exception, item: object) -> None:
    """End this worker because a batch could not be sent; the trainer notices it at once. Runs in the queue's thread."""
    if "No space left" in str(error):
        os._exit(FULL_EXIT_CODE)
    traceback.print_exception(error)
    os._exit(1)
