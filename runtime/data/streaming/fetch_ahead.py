"""Fetches shards ahead, in the order in which the batches need them, as far as the cache has space.

A shard that the next batches need is fetched at once, whatever it takes the place of. One that is needed later waits until
there is space.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from runtime.data.stateless_random import Ids
from runtime.data.streaming.lease import Lease
from runtime.data.streaming.reader import ShardReader
from runtime.errors import DrivetrainError

AT_ONCE = 4
"""Shards that are fetched at the same time."""
SOON = 8
"""Batches ahead whose shards are urgent: worker processes are so far ahead."""
LOOK = 0.1
"""Seconds between two looks for what can be fetched."""
AGAIN = 5.0
"""Seconds after which a shard that could not be fetched is tried again."""
GAP = 64
"""Batches without a shard after which its next use counts as another one."""


class FetchAhead:
    """Fetches the shards of some batches while they are trained on.

    Args:
        reader: of the shards.
        groups: rows of the index of each batch, in order.
    """

    def __init__(self, reader: ShardReader, groups: Sequence[Ids]) -> None:
        self.reader, self.uses, self.position = reader, uses(reader, groups), 0
        self.changed, self.ended = threading.Event(), threading.Event()
        self.lease = Lease(reader.cache.folder)
        self.running: dict[int, Future[bool]] = {}
        self.wanted: list[str] = []
        self.failed: dict[int, tuple[float, DrivetrainError]] = {}
        """When each shard could not be fetched, and why."""
        self.thread = threading.Thread(target=self._run, name="fetch ahead", daemon=True)

    def start(self) -> None:
        """Begin to fetch."""
        self._plan()
        self.reader.lease = self.lease
        self.thread.start()

    def advance(self, batches: int) -> None:
        """Tell how many batches were used."""
        self.position = batches
        self.changed.set()

    def end(self) -> None:
        """Stop, and give back what was kept."""
        self.ended.set()
        self.changed.set()
        self.thread.join()
        self.reader.lease = None
        self.lease.end()

    def _run(self) -> None:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            while not self.ended.is_set():
                self.changed.clear()
                for shard, first in self._plan():
                    if len(self.running) == AT_ONCE:
                        break
                    if shard not in self.running and self._may_try(shard):
                        urgent = first <= self.position + SOON
                        self.running[shard] = pool.submit(self.reader.fetch, shard, urgent=urgent)
                self.changed.wait(LOOK)
                for shard in [shard for shard, future in self.running.items() if future.done()]:
                    self._finish(shard, self.running.pop(shard))

    def _may_try(self, shard: int) -> bool:
        return shard not in self.failed or time.monotonic() - self.failed[shard][0] > AGAIN

    def _finish(self, shard: int, future: Future[bool]) -> None:
        """Keep an error for the worker processes that need the shard; this process meets it by itself."""
        before = len(self.failed)
        try:
            future.result()
            self.failed.pop(shard, None)
        except DrivetrainError as error:
            self.failed[shard] = time.monotonic(), error
        if before or self.failed:
            self._write()

    def _write(self) -> None:
        errors = {
            self.reader.name(shard): [type(error).__name__, error.given, error.possible, error.action]
            for shard, (_, error) in self.failed.items()
        }
        self.lease.write(self.wanted, errors)

    def _plan(self) -> list[tuple[int, int]]:
        """Shards that are not there, in the order of need, with the batch that needs each first; writes the lease."""
        room, wanted, missing = self.reader.cache.limit, list[str](), list[tuple[int, int]]()
        self.uses = [use for use in self.uses if use[1] >= self.position]
        for first, _, shard in self.uses:
            room -= self.reader.size(shard)
            if room < 0:
                break
            wanted.append(name := self.reader.name(shard))
            if not self.reader.cache.has(name):
                missing.append((shard, first))
        if wanted != self.wanted:
            self.wanted = wanted
            self._write()
        return missing


def uses(reader: ShardReader, groups: Sequence[Ids]) -> list[tuple[int, int, int]]:
    """First batch, last batch and shard of each time that a shard is needed, in the order of need."""
    if not len(groups):
        return []
    shards = reader.index.shard_of(np.concatenate(groups))
    batch = np.repeat(np.arange(len(groups)), [len(rows) for rows in groups])
    # Each pair of a shard and a batch once, by shard.
    pairs = np.unique(shards * len(groups) + batch)
    shards, batch = pairs // len(groups), pairs % len(groups)
    edges = np.flatnonzero((np.diff(shards) != 0) | (np.diff(batch) > GAP)) + 1
    first, last = np.concatenate([[0], edges]), np.concatenate([edges, [len(pairs)]]) - 1
    found = zip(batch[first].tolist(), batch[last].tolist(), shards[first].tolist(), strict=True)
    return sorted(use for use in found if reader.in_place(use[2]) is None)
