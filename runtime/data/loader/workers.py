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
from typing import Any, TypeVar

from torch.utils.data import DataLoader, Dataset

from runtime.data.stateless_random import Ids
from runtime.errors import PeerError
from runtime.system.console import say
from runtime.system.signals import die_with, forget

Item = TypeVar("Item")
POLL = 5
"""Seconds between checks whether the workers are alive."""
PATIENCE = 300.0
"""Seconds without a batch after which the workers count as hung."""
STARTS = 3
"""How often workers are started in an epoch."""
NO_ROOM = errno.ENOSPC
"""Exit code of a worker that found no space in shared memory."""
ALONE = "from now on the main process prepares the batches"


@dataclass(frozen=True)
class WorkerSettings:
    """How batches are prepared ahead."""

    workers: int
    pin: bool = False
    tell: Callable[[str], None] = say
    patience: float = PATIENCE

    def prepared(self, source: Dataset[Item], groups: Sequence[Ids]) -> Generator[Item]:
        """`source[ids]` for each group of ids, in order.

        Raises:
            PeerError: if the last of STARTS sets of workers hangs.
        """
        done = 0
        for start in range(1, STARTS + 1):
            team = _WorkerPool(self, source, groups[done:])
            try:
                for item in team:
                    yield item
                    done += 1
                return
            except _SharedMemoryFull as why:
                self.tell(f"{why} before batch {done + 1}; {ALONE}")
                hung = False
                break
            except _WorkerLost as why:
                self._say(str(why), done, start)
                hung = isinstance(why, _WorkerHung)
            finally:
                team.end()
        if hung:
            raise PeerError(
                f"loader workers hung {STARTS} times, the last time at batch {done + 1}",
                "data that can be read in time",
                "check the disk or network that holds the data, or set optimize.loader_workers: 0",
            )
        yield from (source[ids] for ids in groups[done:])

    def _say(self, why: str, done: int, start: int) -> None:
        follows = "new workers continue from there" if start < STARTS else "no new workers are started"
        if start == STARTS and "hung" not in why:
            follows = ALONE
        self.tell(f"{why} before batch {done + 1}; {follows}")


class _WorkerLost(Exception):
    """A worker has died."""


class _WorkerHung(_WorkerLost):
    """No batch arrived within PATIENCE seconds."""


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
            timeout=min(POLL, crew.patience),
            worker_init_fn=functools.partial(_begin, os.getpid()),
        )
        handler = signal.getsignal(signal.SIGCHLD)
        with _uncollected():
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
        while not self.ended.wait(POLL / 2):
            since = self.since
            if since is not None and time.monotonic() - since > self.patience + POLL:
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
        lost = [process for process in self.processes if process.exitcode is not None]
        if any(process.exitcode == NO_ROOM for process in lost):
            raise _SharedMemoryFull("a loader worker found no space in /dev/shm for its batch") from None
        if lost:
            raise _WorkerLost(f"a loader worker died (exit {lost[0].exitcode})") from None
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
def _uncollected() -> Iterator[None]:
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
    multiprocessing.queues.Queue._on_queue_feeder_error = staticmethod(_undelivered)  # type: ignore[attr-defined]


def _undelivered(error: Exception, item: object) -> None:
    """A batch could not be sent: end this worker, which the trainer notices at once. Runs in the queue's feeder thread."""
    if "No space left" in str(error):
        os._exit(NO_ROOM)
    traceback.print_exception(error)
    os._exit(1)
