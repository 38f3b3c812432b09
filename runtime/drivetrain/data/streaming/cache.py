"""The cache of shards on this machine, and counts of what a process fetches into it.

Shards that are in no lease are removed first, least recently used first.

<name>.rows      a shard that can be read
<id>.lease       for each process that reads from the cache, the shards that it needs soon, in the order of need; locked
                 while the process lives
"""

from __future__ import annotations

import json
import mmap
import os
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from drivetrain.errors import StorageError
from drivetrain.system import file_lock
from drivetrain.system.disk_cache import DiskCache
from drivetrain.system.files import blame_storage, make_folder, parse_json
from drivetrain.system.units import format_bytes

_SLOTS = 512
"""Numbers in shared memory, one for each process id modulo _SLOTS."""


class FetchCounts:
    """Counts of this process. Only `waited` includes the worker processes that are forked from it."""

    def __init__(self) -> None:
        self.bytes = 0
        """Bytes of all shards that were fetched from a store."""
        self.fetches = 0
        """Number of fetched shards."""
        self.again = 0
        """Number of shards that were fetched once more, since the cache had no space to keep them."""
        self.busy = 0.0
        """Seconds in which at least one shard was being fetched or unpacked."""
        self.received = 0.0
        """Seconds in which shards were received, summed over the shards, of which several are received at the same time."""
        self.unpacked = 0.0
        """Seconds in which shards were unpacked or tokenized, summed likewise."""
        self._running = 0
        """Number of shards that are being fetched or unpacked now."""
        self._busy_since = 0.0
        self._fetched_names: set[str] = set()
        self._lock = threading.Lock()
        # A slot for each process: a lock in shared memory would stay locked by a worker that is killed.
        self._seconds = np.frombuffer(mmap.mmap(-1, 8 * _SLOTS), np.float64)

    def __reduce__(self) -> tuple[type[FetchCounts], tuple[()]]:
        return FetchCounts, ()

    @property
    def waited(self) -> float:
        """Seconds for which batches waited for shards, summed over the processes that prepare batches."""
        return float(self._seconds.sum())

    def add(self, name: str, size: int) -> None:
        """Count a shard that was fetched."""
        with self._lock:
            self.bytes += size
            self.fetches += 1
            self.again += name in self._fetched_names
            self._fetched_names.add(name)

    @contextmanager
    def count_busy(self) -> Iterator[None]:
        """Count the block as time in which a shard is fetched and unpacked (`busy`)."""
        with self._lock:
            self._running += 1
            if self._running == 1:
                self._busy_since = time.monotonic()
        try:
            yield
        finally:
            with self._lock:
                self._running -= 1
                if not self._running:
                    self.busy += time.monotonic() - self._busy_since

    @contextmanager
    def count_seconds(self, name: str) -> Iterator[None]:
        """Add the seconds of the block to the count `name`: `received` or `unpacked`."""
        start = time.monotonic()
        try:
            yield
        finally:
            with self._lock:
                setattr(self, name, getattr(self, name) + time.monotonic() - start)

    def add_wait(self, seconds: float) -> None:
        """Count seconds for which this process waited for a shard."""
        self._seconds[os.getpid() % _SLOTS] += seconds

    def to_json(self) -> dict[str, int | float]:
        """The counts as a dictionary."""
        with self._lock:
            busy = self.busy + (time.monotonic() - self._busy_since if self._running else 0.0)
        return {
            "bytes": self.bytes,
            "fetches": self.fetches,
            "again": self.again,
            "waited": round(self.waited, 3),
            "busy": round(busy, 3),
            "received": round(self.received, 3),
            "unpacked": round(self.unpacked, 3),
        }


LEASE_SUFFIX = ".lease"
LEASE_POLL_SECONDS = 0.0005
"""Seconds between two attempts to read a lease that is being written."""
MAX_WRITE_SECONDS = 0.5
"""Seconds after which the writer of an incomplete lease counts as killed."""
POLL_SECONDS = 0.05
"""Seconds between two checks whether there is space."""
MAX_WAIT_SECONDS = 300.0
"""Seconds after which a cache that stays full, because all its shards are being read, is an error."""


class Lease:
    """The lease of one reader. Worker processes read in it why a shard could not be fetched."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / f"{uuid.uuid4().hex}{LEASE_SUFFIX}"
        make_folder(folder)
        with blame_storage(folder):
            self.handle = file_lock.open_locked(self.path)
        self.write(())

    def write(self, names: Sequence[str], errors: Mapping[str, Sequence[str]] | None = None) -> None:
        """Replace the content of the lease.

        Args:
            names: names of needed shards, in the order of need.
            errors: by shard name, class and parts of the error for which it could not be fetched.

        Raises:
            StorageError: if it cannot be written.
        """
        text = json.dumps({"names": list(names), "errors": dict(errors or {})}).encode()
        # Written in place, since a new file would have no lock. A reader that finds it incomplete reads it again.
        with blame_storage(self.path.parent):
            os.truncate(self.handle, 0)
            os.pwrite(self.handle, text, 0)

    def error(self, name: str) -> list[str]:
        """Class name and parts of the error for which a shard could not be fetched; empty if there is none."""
        return [str(part) for part in _read_lease(self.path).get("errors", {}).get(name, ())]

    def end(self) -> None:
        """Remove the lease."""
        self.path.unlink(missing_ok=True)
        file_lock.unlock(self.handle)


def read_needed(folder: Path) -> dict[str, int]:
    """How soon each shard is needed, by name: 0 is at once. Leases of processes that are gone are removed."""
    soon: dict[str, int] = {}
    for path in folder.glob(f"*{LEASE_SUFFIX}"):
        with file_lock.try_lock(path) as handle:
            if handle is not None:
                path.unlink(missing_ok=True)
                continue
        for position, name in enumerate(_read_lease(path).get("names", [])):
            soon[name] = min(position, soon.get(name, position))
    return soon


def count_readers(folder: Path) -> int:
    """Number of processes that read from the cache; processes that were killed a moment ago may be counted."""
    return sum(1 for _ in folder.glob(f"*{LEASE_SUFFIX}"))


def _read_lease(path: Path) -> dict[str, Any]:
    """The content of a lease; empty if it is gone or stays incomplete."""
    deadline = time.monotonic() + MAX_WRITE_SECONDS
    while True:
        try:
            content = parse_json(path.read_bytes())
            return content if isinstance(content, dict) else {}
        except OSError:
            return {}
        except ValueError:
            if time.monotonic() > deadline:
                return {}
            time.sleep(LEASE_POLL_SECONDS)


@dataclass(frozen=True)
class ShardCache(DiskCache):
    """The cache of shards in a folder."""

    suffix: ClassVar[str] = ".rows"
    counts: FetchCounts = field(default_factory=FetchCounts, compare=False, repr=False)
    """Counts of what this process fetches into the cache."""

    def make(
        self, name: str, size: int, write: Callable[[Path], None], rank: int = 0, keep: Collection[str] | None = None
    ) -> bool:
        """Put a shard into the cache, unless it is there; one process of the machine writes it, the others wait.

        Args:
            size: most bytes that the shard and its packed file take.
            rank: how soon it is needed, 0 is at once: shards that are needed later may be removed for it. A batch reads
                its shards in this order.
            keep: names of shards that must stay; the method then returns False if there is no space. None to wait.

        Returns:
            Whether the shard is in the cache.

        Raises:
            StorageError: if it cannot be written, or there is no space for long.
        """
        if size > self.limit:
            raise StorageError(
                f"data.stream.cache is {format_bytes(self.limit)}, and one shard takes {format_bytes(size)}",
                f"{format_bytes(size)} or more",
                "raise data.stream.cache, or write smaller shards",
            )
        start = time.monotonic()
        while not self.write(name, size, write, partial(self._rank_removable, rank, keep)):
            if keep is not None:
                return False
            if time.monotonic() - start > MAX_WAIT_SECONDS:
                raise StorageError(
                    f"the cache of shards {self.folder} was full for {MAX_WAIT_SECONDS:.0f} s: other runs read all of its "
                    f"{format_bytes(self.limit)}",
                    "space for the shards of all runs of this machine",
                    "raise data.stream.cache, or train one after another",
                )
            time.sleep(POLL_SECONDS)
        return True

    def _rank_removable(
        self, rank: int, keep: Collection[str] | None, names: Collection[str]
    ) -> Mapping[str, tuple[int, ...]]:
        """Rank the shards that nobody needs, or that are needed later than one of this rank."""
        soon = read_needed(self.folder)
        ranks: dict[str, tuple[int, ...]] = {}
        for name in names:
            if name not in soon:
                ranks[name] = (0,)
            elif soon[name] > rank and name not in (keep or ()):  # the one that is needed last is removed first
                ranks[name] = (1, -soon[name])
            elif keep is None and soon[name] < rank:  # the batch has read it already; later ones may need it
                ranks[name] = (2, -soon[name])
        return ranks
