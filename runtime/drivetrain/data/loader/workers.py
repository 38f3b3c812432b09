"""Worker processes that prepare batches ahead. A worker that dies or hangs costs time, but changes no batch.

The samples of a batch and their random numbers depend on the batch alone, so replacement workers continue with the
batch that is due.
"""

from __future__ import annotations

import contextlib
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
from drivetrain.system.signals import die_with, forget
from drivetrain.system.units import format_bytes

Item = TypeVar("Item")
POLL_SECONDS = 5
"""Seconds between checks whether the workers are alive."""
HANG_SECONDS = 300.0
"""Seconds without a batch after which the workers count as hung."""
MAX_STARTS = 3
"""How often workers are started in an epoch."""
SHARED_MEMORY = Path("/dev/shm")
FULL_EXIT_CODE = errno.ENOSPC
"""Exit code of a worker that found no space in shared memory."""
FALLBACK_NOTE = "from now on the main process prepares the batches"


class SharedMemory:
    """Limits the number of workers to what shared memory can hold; each batch size is measured once.

    Args:
        processes: number of ranks that share it.
    """

    def __init__(self, processes: int = 1) -> None:
        self.processes = processes
        self._workers_by_batch: dict[tuple[int, int], tuple[Split, int]] = {}

    def workers(self, split: Split, count: int, requested: int) -> tuple[int, str]:
        """Return how many of the requested workers have room; when first measured, also why they are fewer.

        Args:
            split: source of the samples.
            count: size of the largest batch.
            requested: requested workers.
        """
        if not requested or (room := _free_shared_memory()) is None:
            return requested, ""
        # The split is kept with its number: another one could get the same id after it.
        key = (id(split), count)
        if key in self._workers_by_batch:
            return min(requested, self._workers_by_batch[key][1]), ""
        batch = count * _measure_sample(split)
        fits = room // self.processes // max(1, BATCHES_PER_WORKER * batch)
        self._workers_by_batch[key] = split, fits
        if fits >= requested:
            return requested, ""
        who = (
            f"are prepared by {fits} instead of {requested} loader workers"
            if fits
            else "are prepared without loader workers"
        )
        return (
            fits,
            f"{SHARED_MEMORY} has {format_bytes(room)} free: batches of {count:,} samples, {format_bytes(batch)} each, {who}",
        )


def _free_shared_memory() -> int | None:
    """Return the free bytes of shared memory; None if there is no /dev/shm."""
    try:
        status = os.statvfs(SHARED_MEMORY)
    except OSError:
        return None
    return status.f_bavail * status.f_frsize


def _measure_sample(split: Split) -> int:
    """Return the bytes of the longest sample."""
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
    """How batches are prepared ahead."""

    workers: int
    pin: bool = False
    tell: Callable[[str], None] = say
    patience: float = HANG_SECONDS

    def prepared(self, source: Dataset[Item], groups: Sequence[Ids]) -> Generator[Item]:
        """Yield `source[ids]` for each group of ids, in order; lost workers are replaced, and at last done without.

        Raises:
            PeerError: if the last of MAX_STARTS sets of workers hangs.
        """
        done = 0
        for start in range(1, MAX_STARTS + 1):
            team = _WorkerPool(self, source, groups[done:])
            try:
                for item in team:
                    yield item
                    done += 1
                return
            except _SharedMemoryFull as error:
                self.tell(f"{error} before batch {done + 1}; {FALLBACK_NOTE}")
                hung = False
                break
            except _WorkerLost as error:
                hung = isinstance(error, _WorkerHung)
                if start < MAX_STARTS:
                    follows = "new workers continue from there"
                else:
                    # Samples that hang a worker would hang this process too, and nobody would kill it.
                    follows = "no new workers are started" if hung else FALLBACK_NOTE
                self.tell(f"{error} before batch {done + 1}; {follows}")
            finally:
                team.end()
        if hung:
            raise PeerError(
                f"loader workers hung {MAX_STARTS} times, the last time at batch {done + 1}",
                "data that can be read in time",
                "check the disk or network that holds the data, or set optimize.loader_workers: 0",
            )
        yield from (source[ids] for ids in groups[done:])


class _WorkerLost(Exception):
    """A worker has died."""


class _WorkerHung(_WorkerLost):
    """No batch arrived within HANG_SECONDS seconds."""


class _SharedMemoryFull(_WorkerLost):
    """Shared memory has no space for a batch."""


class _WorkerPool:
    """The workers of one start, behind one torch DataLoader."""

    def __init__(self, crew: WorkerSettings, source: Dataset[Any], groups: Sequence[Ids]) -> None:
        self.patience, before = crew.patience, set(multiprocessing.active_children())
        loader = DataLoader(
            source,
            batch_size=None,
            sampler=groups,
            num_workers=crew.workers,
            prefetch_factor=2,
            pin_memory=crew.pin,
            timeout=min(POLL_SECONDS, crew.patience),
            worker_init_fn=functools.partial(_begin, os.getpid()),
        )
        handler = signal.getsignal(signal.SIGCHLD)
        with _without_garbage_collection():
            self.items = iter(loader)
        # torch's handler would raise at any point of the trainer, even in the middle of an optimizer step.
        signal.signal(signal.SIGCHLD, handler)
        self.processes = set(multiprocessing.active_children()) - before
        self.since: float | None = None
        """When the current wait for a batch began; None if nobody waits."""
        self.hung, self.ended = False, threading.Event()
        threading.Thread(target=self._guard, name="loader guard", daemon=True).start()

    def __iter__(self) -> Iterator[Any]:
        while True:
            self.since = since = time.monotonic()
            while True:
                try:
                    item = next(self.items)
                    break
                except StopIteration:
                    return
                except (RuntimeError, OSError, EOFError) as error:
                    self._judge(error, time.monotonic() - since)
            self.since = None
            yield item

    def _guard(self) -> None:
        """Watch the workers: one that stops while it sends a batch would leave the trainer in a read without timeout."""
        while not self.ended.wait(POLL_SECONDS / 2):
            since = self.since
            if since is not None and time.monotonic() - since > self.patience + POLL_SECONDS:
                self.hung = True
                self._kill()
                return

    def _judge(self, error: Exception, waited: float) -> None:
        """Return to keep waiting, or raise what is wrong with the workers."""
        if self.hung:
            raise _WorkerHung(f"the loader workers hung for {waited:.0f} s") from None
        if not isinstance(error, RuntimeError):  # a pipe is closed a moment before its process has ended
            for process in self.processes:
                process.join(0.5)
        dead = [process for process in self.processes if process.exitcode is not None]
        if any(process.exitcode == FULL_EXIT_CODE for process in dead):
            raise _SharedMemoryFull("a loader worker found no space in /dev/shm for its batch") from None
        if dead:
            raise _WorkerLost(f"a loader worker died (exit {dead[0].exitcode})") from None
        if "timed out" not in str(error):
            raise error
        if waited >= self.patience:
            raise _WorkerHung(f"the loader workers hung for {waited:.0f} s") from None

    def end(self) -> None:
        """End all workers, stopped ones too."""
        self.ended.set()
        self._kill()
        for process in self.processes:
            process.join()

    def _kill(self) -> None:
        for process in self.processes:
            process.kill()  # a stopped process handles no other signal


@contextlib.contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Nothing is collected in the block."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def _begin(parent: int, number: int) -> None:
    """Prepare a new worker process."""
    # It must not collect what the parent no longer uses: an epoch that was given up would end its own workers and files.
    gc.freeze()
    gc.enable()
    forget()
    die_with(parent)
    # By default Python prints the error and drops the batch; the trainer would wait until the worker counts as hung.
    multiprocessing.queues.Queue._on_queue_feeder_error = staticmethod(_end_undelivered)  # type: ignore[attr-defined]


def _end_undelivered(error: Exception, item: object) -> None:
    """A batch could not be sent: end this worker, which the trainer notices at once. Runs in the queue's feeder thread."""
    if "No space left" in str(error):
        os._exit(FULL_EXIT_CODE)
    traceback.print_exception(error)
    os._exit(1)
