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
from drivetrain.data.streaming import lease
from drivetrain.data.streaming.fetch_width import MAX_WIDTH, START_WIDTH
from drivetrain.data.streaming.lease import Lease
from drivetrain.data.streaming.reader import ShardReader
from drivetrain.errors import DrivetrainError, StorageError
from drivetrain.system.units import format_bytes

POLL_SECONDS = 0.1
"""Seconds between two checks for what can be fetched."""
RECOUNT_SECONDS = 1.0
"""Seconds between two counts of the processes that share the cache: the folder can have thousands of files."""
RETRY_SECONDS = 5.0
"""Seconds after which a shard that could not be fetched is tried again."""
CACHE_PARTS = 4
"""Shards that are being fetched may take 1/CACHE_PARTS of the cache; more take the place of what is needed soon."""
UNUSED_BATCHES = 64
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
        self.lock = threading.Lock()
        self.largest = max((reader.beside(shard) for shard in reader.cached()), default=0)
        """Bytes that a shard takes beside what stays in the cache, while it is unpacked."""
        largest_shard = max((reader.size(shard) + reader.beside(shard) for shard in reader.cached()), default=1)
        self.most = min(MAX_WIDTH, max(START_WIDTH, reader.cache.limit // (CACHE_PARTS * largest_shard)))
        """Shards at the same time for which the cache has space."""
        self.share, self.counted = 0, 0.0
        """Bytes of the cache for this process, and when that was found out."""
        self.passed = 0
        """Uses from the beginning on that are over."""
        self.wanted: tuple[list[str], list[str]] = [], []
        """Names of shards in the order of need, and of those that are needed for the last time."""
        self.failed: dict[int, tuple[float, DrivetrainError]] = {}
        """When each shard could not be fetched, and why."""
        self.thread = threading.Thread(target=self._run, name="fetch ahead", daemon=True)

    def start(self) -> None:
        """Begin to fetch. What the reader still fetches for batches that were given up ends."""
        if self.reader.end_ahead:
            self.reader.end_ahead()
        self.reader.lease, self.reader.end_ahead = self.lease, self.end
        self._look_ahead()
        self.thread.start()

    def advance(self, batches: int) -> None:
        """Tell how many batches were used."""
        if self.ended.is_set():
            return
        self.position = batches
        self._look_ahead()
        self.changed.set()

    def end(self) -> None:
        """Stop, and give back what was kept."""
        if self.ended.is_set():
            return
        self.ended.set()
        self.changed.set()
        self.thread.join()
        self.reader.lease, self.reader.end_ahead, self.reader.ranks = None, None, {}
        self.lease.end()

    def _run(self) -> None:
        with ThreadPoolExecutor(self.most) as pool:
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
                counts = self.reader.cache.counts
                counts.width.decide(counts.to_json(), time.monotonic(), self.most)

    @property
    def width(self) -> int:
        """How many shards are fetched at the same time."""
        return min(self.reader.cache.counts.width.width, self.most)

    def _too_small(self, shard: int) -> StorageError | None:
        """The error of a cache that cannot hold all shards of the present batch: its worker would wait for ever."""
        due = {use[2] for use in self.uses[self.passed :] if use[0] <= self.position <= use[1]}
        needed_bytes = sum(map(self.reader.size, due)) + self.reader.beside(shard)
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
        """Keep an error for the worker processes that need the shard; this process meets it by itself."""
        before = len(self.failed)
        try:
            if future.result():
                self.failed.pop(shard, None)
            elif obstacle := self._too_small(shard):
                self.failed[shard] = time.monotonic(), obstacle
        except Exception as error:  # whatever it is: this thread must live, and no worker wait for ever
            self.failed[shard] = time.monotonic(), self._place_error(shard, error)
        if before or self.failed:
            with contextlib.suppress(StorageError):  # the next one may be written, and the main process meets it
                self._write()

    def _place_error(self, shard: int, error: Exception) -> DrivetrainError:
        if isinstance(error, DrivetrainError):
            return error
        return StorageError(
            f"shard {self.reader.index.shards[shard].address} cannot be read into the cache: {type(error).__name__}: {error}",
            "a whole shard, and a cache that can be written",
            "write or copy the shard again; optimize.loader_workers: 0 shows where it fails",
        )

    def _write(self) -> None:
        errors = {
            self.reader.name(shard): [type(error).__name__, error.given, error.possible, error.action]
            for shard, (_, error) in list(self.failed.items())
        }
        with self.lock:
            self.lease.write(*self.wanted, errors)

    def _look_ahead(self) -> None:
        """Find out what is needed soon, as far as the cache has space, in the order of need; write the lease."""
        while self.passed < len(self.uses) and self.uses[self.passed][1] < self.position:
            self.passed += 1
        # What is unpacked at the same time needs space, too: else it pushes out what is needed soon.
        reserve = self.width * self.largest
        self._find_share()
        room, ranks, ending = self.share - reserve, dict[int, int](), list[int]()
        for first, last, shard in self.uses[self.passed :]:
            if last < self.position or shard in ranks:
                continue
            room -= self.reader.size(shard)
            if room < 0 and first > self.position:
                break
            ranks[shard] = len(ranks)
            ending += [shard] if last == self.position else []
        self.reader.ranks = ranks
        needed_names = [self.reader.name(shard) for shard in ranks], [self.reader.name(shard) for shard in ending]
        if needed_names != self.wanted:
            self.wanted = needed_names
            self._write()

    def _find_share(self) -> None:
        """Processes that look as far ahead as the whole cache reaches would push out what the others have just fetched."""
        if time.monotonic() - self.counted > RECOUNT_SECONDS:
            self.share = self.reader.cache.limit // max(1, lease.count(self.reader.cache.folder))
            self.counted = time.monotonic()


def uses(reader: ShardReader, groups: Sequence[Ids]) -> list[tuple[int, int, int]]:
    """First batch, last batch and shard of each time that a shard is needed, in the order of need."""
    if not len(groups):
        return []
    shards = reader.index.shard_of(np.concatenate(groups))
    batch = np.repeat(np.arange(len(groups)), [len(rows) for rows in groups])
    # Each pair of a shard and a batch once, by shard.
    pairs = np.unique(shards * len(groups) + batch)
    shards, batch = pairs // len(groups), pairs % len(groups)
    edges = np.flatnonzero((np.diff(shards) != 0) | (np.diff(batch) > UNUSED_BATCHES)) + 1
    first, last = np.concatenate([[0], edges]), np.concatenate([edges, [len(pairs)]]) - 1
    all_uses = zip(batch[first].tolist(), batch[last].tolist(), shards[first].tolist(), strict=True)
    return sorted(use for use in all_uses if reader.in_place(use[2]) is None)
