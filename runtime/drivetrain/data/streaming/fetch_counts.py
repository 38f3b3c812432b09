"""What the training of one process has fetched from stores, and how long its batches stood still for it."""

from __future__ import annotations

import mmap
import os
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from drivetrain.data.streaming.fetch_width import FetchWidth

_SLOTS = 512
_NUMBER = struct.Struct("d")


class FetchCounts:
    """Counts of this process. Only the seconds also count those of the worker processes that are forked from it."""

    def __init__(self) -> None:
        self.bytes = 0
        """Of all shards that came from a store."""
        self.fetches = 0
        """How many did."""
        self.again = 0
        """How many of them had been fetched before: the cache had no space for them."""
        self.busy = 0.0
        """Seconds in which at least one was fetched or unpacked."""
        self.received = 0.0
        """Seconds of all requests, summed: several run at the same time."""
        self.unpacked = 0.0
        """Seconds in which shards were unpacked or tokenized, summed."""
        self.width = FetchWidth()
        """How many are fetched at the same time."""
        self._running, self._since = 0, 0.0
        self._known: set[str] = set()
        self._lock = threading.Lock()
        # A place for each process: a lock in shared memory would stay locked by a worker that is killed.
        self._seconds = mmap.mmap(-1, _SLOTS * _NUMBER.size)

    def __reduce__(self) -> tuple[type[FetchCounts], tuple[()]]:
        return FetchCounts, ()

    @property
    def waited(self) -> float:
        """Seconds for which batches stood still for shards, summed over the processes that prepare them."""
        return float(sum(seconds for (seconds,) in _NUMBER.iter_unpack(self._seconds[:])))

    def add(self, name: str, size: int) -> None:
        """Count a shard that was fetched."""
        with self._lock:
            self.bytes += size
            self.fetches += 1
            self.again += name in self._known
            self._known.add(name)

    @contextmanager
    def working(self) -> Iterator[None]:
        """While a shard is fetched and unpacked."""
        with self._lock:
            self._running += 1
            if self._running == 1:
                self._since = time.monotonic()
        try:
            yield
        finally:
            with self._lock:
                self._running -= 1
                if not self._running:
                    self.busy += time.monotonic() - self._since

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Add the seconds of a part of the work to `received` or `unpacked`."""
        start = time.monotonic()
        try:
            yield
        finally:
            with self._lock:
                setattr(self, name, getattr(self, name) + time.monotonic() - start)

    def add_wait(self, seconds: float) -> None:
        """Count seconds for which this process could not read a shard."""
        offset = os.getpid() % _SLOTS * _NUMBER.size
        _NUMBER.pack_into(self._seconds, offset, _NUMBER.unpack_from(self._seconds, offset)[0] + seconds)

    def to_json(self) -> dict[str, int | float]:
        """The numbers, for records."""
        with self._lock:
            busy = self.busy + (time.monotonic() - self._since if self._running else 0.0)
        return {
            "bytes": self.bytes,
            "fetches": self.fetches,
            "again": self.again,
            "waited": round(self.waited, 3),
            "busy": round(busy, 3),
            "received": round(self.received, 3),
            "unpacked": round(self.unpacked, 3),
        }

    def record(self) -> dict[str, int | float | str]:
        """The numbers, and how many shards were fetched at the same time in the end and why."""
        return {**self.to_json(), "at_once": self.width.width, "why": self.width.reason}
