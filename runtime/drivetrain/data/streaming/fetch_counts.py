"""Counts of what one training process has fetched from stores, and of how long its batches waited for shards."""

from __future__ import annotations

import mmap
import os
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

_SLOTS = 512
"""Numbers in shared memory, one for each process id modulo _SLOTS."""
_NUMBER = struct.Struct("d")


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
        self._seconds = mmap.mmap(-1, _SLOTS * _NUMBER.size)

    def __reduce__(self) -> tuple[type[FetchCounts], tuple[()]]:
        return FetchCounts, ()

    @property
    def waited(self) -> float:
        """Seconds for which batches waited for shards, summed over the processes that prepare batches."""
        return float(sum(seconds for (seconds,) in _NUMBER.iter_unpack(self._seconds[:])))

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
        offset = os.getpid() % _SLOTS * _NUMBER.size
        _NUMBER.pack_into(self._seconds, offset, _NUMBER.unpack_from(self._seconds, offset)[0] + seconds)

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
