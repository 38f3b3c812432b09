"""The cache of shards on this machine. Shards that are in no lease are removed first, least recently used first.

<name>.rows      a shard that can be read
<id>.lease       the shards that a run needs soon, in the order of need; locked while the run lives
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import ClassVar

from drivetrain.data.streaming import lease
from drivetrain.data.streaming.fetch_counts import FetchCounts
from drivetrain.errors import StorageError
from drivetrain.system.disk_cache import DiskCache
from drivetrain.system.units import format_bytes

POLL_SECONDS = 0.05
"""Seconds between two checks whether there is space."""
MAX_WAIT_SECONDS = 300.0
"""Seconds after which a cache that stays full, because all its shards are being read, is an error."""


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
        soon = lease.read_needed(self.folder)
        ranks: dict[str, tuple[int, ...]] = {}
        for name in names:
            if name not in soon:
                ranks[name] = (0,)
            elif soon[name] > rank and name not in (keep or ()):  # the one that is needed last is removed first
                ranks[name] = (1, -soon[name])
            elif keep is None and soon[name] < rank:  # the batch has read it already; later ones may need it
                ranks[name] = (2, -soon[name])
        return ranks
