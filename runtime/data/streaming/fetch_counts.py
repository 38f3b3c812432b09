"""What the training of one process has fetched from stores, and how long its batches stood still for it."""

from __future__ import annotations

import mmap
import os
import struct
import threading

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

    def add_wait(self, seconds: float) -> None:
        """Count seconds for which this process could not read a shard."""
        place = os.getpid() % _SLOTS * _NUMBER.size
        _NUMBER.pack_into(self._seconds, place, _NUMBER.unpack_from(self._seconds, place)[0] + seconds)

    def to_json(self) -> dict[str, int | float]:
        """The numbers, for records."""
        return {"bytes": self.bytes, "fetches": self.fetches, "again": self.again, "waited": round(self.waited, 3)}
