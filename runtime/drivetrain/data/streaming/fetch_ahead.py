"""Fetches shards ahead, in the order in which the batches need them, as far as the cache has space.

A shard that is fetched ahead takes the place of one that nobody needs, or that another run needs later.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from drivetrain.data.stateless_random import Ids
from drivetrain.data.streaming.cache import Lease, count_readers
from drivetrain.data.streaming.reader import ShardReader
from drivetrain.errors import DrivetrainError, StorageError
from drivetrain.system.units import format_bytes

MIN_WIDTH, MAX_WIDTH = 4, 8
"""Fewest and most shards that are fetched at the same time."""
POLL_SECONDS = 0.1
"""Seconds between two checks for what can be fetched."""
RECOUNT_SECONDS = 1.0
"""Seconds between two counts of the processes that share the cache: counting lists a folder with thousands of files."""
RETRY_SECONDS = 5.0
"""Seconds after which a shard that could not be fetched is tried again."""
CACHE_PARTS = 4
"""Shards that are being fetched may take 1/CACHE_PARTS of the cache; more would displace shards that are needed soon."""
UNUSED_BATCHES = 64
"""Batches that do not need a shard after which its next batch begins another use."""


class FetchAhead:
    """Fetches the shards of some batches while they are trained on.

    Args:
        groups: for each batch, in order, its rows of the index.
    """

    def __init__(self, reader: ShardReader, groups: Sequence[Ids]) -> None:
        self.reader = reader
        self.uses = list_uses(reader, groups)
        self.position = 0
        """Number of the batch that is trained on."""
        self.changed, self.ended = threading.Event(), threading.Event()
        self.lease = Lease(reader.cache.folder)
        self.running: dict[int, Future[bool]] = {}
        self.lock = threading.Lock()
        self.largest_packed = max((reader.count_packed_bytes(shard) for shard in reader.cached()), default=0)
        """Most bytes of a packed shard, which is in the cache only while it is unpacked."""
        largest_shard = max(
            (reader.size(shard) + reader.count_packed_bytes(shard) for shard in reader.cached()), default=1
        )
        self.width = min(MAX_WIDTH, max(MIN_WIDTH, reader.cache.limit // (CACHE_PARTS * largest_shard)))
        """How many shards are fetched at the same time, by the space of the cache."""
        self.share = 0
        """Bytes of the cache for this process."""
        self.share_updated = 0.0
        """Time at which `share` was computed."""
        self.past_uses = 0
        """Number of uses, from the first on, whose last batch was trained on."""
        self.lease_names: list[str] = []
        """What the lease says: names of shards in the order of need."""
        self.failed: dict[int, tuple[float, DrivetrainError]] = {}
        """Time and error of the last attempt, for each shard that could not be fetched."""
        self.thread = threading.Thread(target=self._run, name="fetch ahead", daemon=True)

    def start(self) -> None:
        """Start the thread that fetches; what still fetches for earlier, abandoned batches of the reader is ended."""
        if self.reader.end_ahead:
            self.reader.end_ahead()
        self.reader.lease, self.reader.end_ahead = self.lease, self.end
        self._look_ahead()
        self.thread.start()

    def advance(self, batches: int) -> None:
        """Take the number of batches that were used so far."""
        if self.ended.is_set():
            return
        self.position = batches
        self._look_ahead()
        self.changed.set()

    def end(self) -> None:
        """Stop fetching, and remove the lease."""
        if self.ended.is_set():
            return
        self.ended.set()
        self.changed.set()
        self.thread.join()
        self.reader.lease, self.reader.end_ahead, self.reader.ranks = None, None, {}
        self.lease.end()

    def _run(self) -> None:
        """Fetch until `end`; runs in the thread."""
        with ThreadPoolExecutor(self.width) as pool:
            while not self.ended.is_set():
                self.changed.clear()
                for shard in list(self.reader.ranks):
                    if len(self.running) >= self.width:
                        break
                    if shard not in self.running and self._may_try(shard):
                        self.running[shard] = pool.submit(self.reader.fetch, shard, urgent=False)
                self.changed.wait(POLL_SECONDS)
                for shard in [shard for shard, future in self.running.items() if future.done()]:
                    self._finish(shard, self.running.pop(shard))

    def _cache_too_small_error(self, shard: int) -> StorageError | None:
        """The error if the cache cannot hold all shards of the present batch, whose worker would wait forever; else None."""
        due = {use[2] for use in self.uses[self.past_uses :] if use[0] <= self.position <= use[1]}
        needed_bytes = sum(map(self.reader.size, due)) + self.reader.count_packed_bytes(shard)
        if shard not in due or needed_bytes <= self.reader.cache.limit:
            return None
        return StorageError(
            f"data.stream.cache is {format_bytes(self.reader.cache.limit)}, and the {len(due)} shards of one batch take "
            f"{format_bytes(needed_bytes)} while one of them is unpacked",
            f"{format_bytes(needed_bytes)} or more for loader workers",
            "raise data.stream.cache, write smaller shards, or set optimize.loader_workers: 0",
        )

    def _may_try(self, shard: int) -> bool:
        if shard in self.failed and time.monotonic() - self.failed[shard][0] < RETRY_SECONDS:
            return False
        return not self.reader.cache.has(self.reader.name(shard))

    def _finish(self, shard: int, future: Future[bool]) -> None:
        """Record in the lease why a shard could not be fetched, for the worker processes that wait for it.

        This process needs no record: its own read fails with the same error.
        """
        had_failures = bool(self.failed)
        try:
            if future.result():
                self.failed.pop(shard, None)
            elif cache_error := self._cache_too_small_error(shard):
                self.failed[shard] = time.monotonic(), cache_error
        except Exception as error:  # of any kind: this thread must live on, and no worker may wait forever
            self.failed[shard] = time.monotonic(), self._to_drivetrain_error(shard, error)
        if had_failures or self.failed:
            with contextlib.suppress(StorageError):  # a later write may succeed, and the main process raises it
                self._write_lease()

    def _to_drivetrain_error(self, shard: int, error: Exception) -> DrivetrainError:
        if isinstance(error, DrivetrainError):
            return error
        return StorageError(
            f"shard {self.reader.index.shards[shard].address} cannot be read into the cache: {type(error).__name__}: {error}",
            "a whole shard, and a cache that can be written",
            "write or copy the shard again; optimize.loader_workers: 0 shows where it fails",
        )

    def _write_lease(self) -> None:
        errors = {
            self.reader.name(shard): [type(error).__name__, error.given, error.possible, error.action]
            for shard, (_, error) in list(self.failed.items())
        }
        with self.lock:
            self.lease.write(self.lease_names, errors)

    def _look_ahead(self) -> None:
        """Rank the shards that are needed soon, in the order of need, as far as the cache has space; write the lease."""
        while self.past_uses < len(self.uses) and self.uses[self.past_uses][1] < self.position:
            self.past_uses += 1
        # Packed shards need space while they are unpacked; without a reserve they would displace what is needed soon.
        reserve = self.width * self.largest_packed
        self._update_share()
        free_bytes, ranks = self.share - reserve, dict[int, int]()
        for first, last, shard in self.uses[self.past_uses :]:
            if last < self.position or shard in ranks:
                continue
            free_bytes -= self.reader.size(shard)
            if free_bytes < 0 and first > self.position:
                break
            ranks[shard] = len(ranks)
        self.reader.ranks = ranks
        needed_names = [self.reader.name(shard) for shard in ranks]
        if needed_names != self.lease_names:
            self.lease_names = needed_names
            self._write_lease()

    def _update_share(self) -> None:
        """Divide the cache by its processes: looking further ahead would displace what the others have just fetched."""
        if time.monotonic() - self.share_updated > RECOUNT_SECONDS:
            self.share = self.reader.cache.limit // max(1, count_readers(self.reader.cache.folder))
            self.share_updated = time.monotonic()


def list_uses(reader: ShardReader, groups: Sequence[Ids]) -> list[tuple[int, int, int]]:
    """List the uses of shards as (first batch, last batch, shard), in the order of need; a shard can have several."""
    if not len(groups):
        return []
    shards = reader.index.shard_of(np.concatenate(groups))
    batch = np.repeat(np.arange(len(groups)), [len(rows) for rows in groups])
    # Each pair of a shard and a batch once, sorted by shard and then by batch.
    pairs = np.unique(shards * len(groups) + batch)
    shards, batch = pairs // len(groups), pairs % len(groups)
    edges = np.flatnonzero((np.diff(shards) != 0) | (np.diff(batch) > UNUSED_BATCHES)) + 1
    first, last = np.concatenate([[0], edges]), np.concatenate([edges, [len(pairs)]]) - 1
    all_uses = zip(batch[first].tolist(), batch[last].tolist(), shards[first].tolist(), strict=True)
    return sorted(use for use in all_uses if reader.in_place(use[2]) is None)
