"""Reads rows of shards: where they are, or from the cache, into which they are fetched first."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Protocol

import numpy as np

from drivetrain.data.stateless_random import Ids
from drivetrain.data.streaming import flat_file, local_store
from drivetrain.data.streaming.cache import WHOLE, ShardCache
from drivetrain.data.streaming.index import Index, digest
from drivetrain.data.streaming.lease import Lease
from drivetrain.data.streaming.shard import Shard, ShardStore
from drivetrain.errors import DataError, StorageError

LOOK_SECONDS = 0.02
"""Seconds between two looks of a worker process for a shard that is being fetched."""
_ERRORS = {"DataError": DataError, "StorageError": StorageError}


class Rows(Protocol):
    """How the rows of a shard lie in a file."""

    @property
    def unpacked(self) -> str:
        """How a shard becomes what is in the cache, in words; empty if it stays as it is."""
        ...

    def write(self, file: Path, shard: Shard, path: Path, room: int) -> None:
        """Unpack a shard.

        Raises:
            OutgrownError: if it takes more than `room` bytes.
        """
        ...

    def is_whole(self, handle: int, shard: Shard, count: int) -> bool:
        """Whether an open file of the cache is all of a shard with `count` rows."""
        ...

    def read(self, handle: int, rows: Ids, start: int) -> list[bytes]:
        """Some rows of an open file; `rows` are those of the index, `start` is the first one of the shard."""
        ...


class OutgrownError(Exception):
    """An unpacked shard takes more space than was reserved for it."""


@dataclass
class ShardReader:
    """The rows of an index."""

    store: ShardStore
    index: Index
    cache: ShardCache
    rows: Rows
    lease: Lease | None = None
    """What is fetched ahead; None if nothing is."""
    ranks: Mapping[int, int] = field(default_factory=dict)
    """How soon shards are needed, as far as it is known: 0 is at once."""
    end_ahead: Callable[[], None] | None = None
    """Ends what fetches ahead."""
    owner: int = field(default_factory=os.getpid)
    sizes: dict[int, int] = field(default_factory=dict)
    """Bytes in the cache, by shard, as far as they are known."""

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"lease": None, "end_ahead": None}

    def read(self, rows: Ids) -> list[bytes]:
        """The bytes of these rows of the index, in their order.

        Raises:
            DataError: if a shard has changed.
            StorageError: if it cannot be fetched.
        """
        contents: list[bytes] = [b""] * len(rows)
        shards = self.index.shard_of(rows)
        # Those that are needed longest last, so that others can make room for them.
        for shard in sorted(set(shards.tolist()), key=lambda shard: (self.ranks.get(shard, len(self.ranks)), shard)):
            places = np.flatnonzero(shards == shard)
            start = int(self.index.starts[shard])
            with self._open(shard) as handle:
                for position, data in zip(places.tolist(), self.rows.read(handle, rows[places], start), strict=True):
                    contents[position] = data
        return contents

    def cached(self) -> list[int]:
        """The shards that are read from the cache."""
        return [shard for shard in range(len(self.index.shards)) if self.in_place(shard) is None]

    def is_remote(self) -> bool:
        """Whether the shards come from a store."""
        return self.store.local(self.index.shards[0]) is None

    def in_place(self, shard: int) -> Path | None:
        """The file of a shard, if it is read where it is."""
        return None if self.rows.unpacked else self.store.local(self.index.shards[shard])

    def name(self, shard: int) -> str:
        """The name of a shard in the cache."""
        indexed = self.index.shards[shard]
        return digest([indexed.address, indexed.identify(), self.rows.unpacked or "whole"])

    def size(self, shard: int) -> int:
        """Bytes that a shard takes in the cache, about."""
        return self.sizes.get(shard, int(self.index.bytes[shard]))

    def beside(self, shard: int) -> int:
        """Bytes that a shard takes while it is fetched, beside its unpacked form."""
        indexed = self.index.shards[shard]
        return indexed.size if self.rows.unpacked and not self.store.local(indexed) else 0

    def fetch(self, shard: int, *, urgent: bool) -> bool:
        """Put a shard into the cache; returns whether it is there. If it is not urgent, what this run needs stays.

        Raises:
            DataError: if it has changed.
            StorageError: if it cannot be fetched.
        """
        indexed, name, room = self.index.shards[shard], self.name(shard), self.size(shard)
        local = self.store.local(indexed)
        if local:
            local_store.check(indexed)
        while True:
            whole_size = self.beside(shard)
            write = partial(self._make, indexed, local, room)
            try:
                rank = self.ranks.get(shard, 0)
                keep = None if urgent else [self.name(shard_number) for shard_number in list(self.ranks)]
                return self.cache.make(name, room + whole_size, write, rank, keep)
            except OutgrownError:
                room *= 2
                self.sizes[shard] = room

    def _make(self, shard: Shard, local: Path | None, room: int, new: Path) -> None:
        """Write what is in the cache of a shard."""
        counts = self.cache.counts
        with counts.working():
            if not self.rows.unpacked:
                self._fetch(shard, new)
                return
            whole_file = local or new.with_suffix(WHOLE)
            try:
                if not local:
                    self._fetch(shard, whole_file)
                with counts.timed("unpacked"):
                    self.rows.write(whole_file, shard, new, room)
            finally:
                if not local:
                    whole_file.unlink(missing_ok=True)
        if local:
            local_store.check(shard)

    def _fetch(self, shard: Shard, path: Path) -> None:
        with self.cache.counts.timed("received"):
            self.store.fetch(shard, path)
        self.cache.counts.add(shard.address, shard.size)

    @contextlib.contextmanager
    def _open(self, shard: int) -> Iterator[int]:
        """An open file that has the rows of a shard."""
        if local_path := self.in_place(shard):
            local_store.check(self.index.shards[shard])
            handle = os.open(local_path, os.O_RDONLY)
            try:
                yield handle
            finally:
                os.close(handle)
            return
        name, missed = self.name(shard), 0.0
        while True:
            with self.cache.reading(name) as cached:
                if cached is not None and self._is_whole(cached, shard):
                    if missed:
                        self.cache.counts.add_wait(time.monotonic() - missed)
                    yield cached
                    return
                if cached is not None:
                    self.cache.drop(name)
            missed = missed or time.monotonic()
            if self.lease is not None and os.getpid() != self.owner:
                self._wait(name)
            else:
                self.fetch(shard, urgent=True)

    def _is_whole(self, handle: int, shard: int) -> bool:
        return self.rows.is_whole(handle, self.index.shards[shard], int(self.index.sizes[shard]))

    def _wait(self, name: str) -> None:
        """In a worker process, which fetches nothing itself: a connection does not survive a fork."""
        assert self.lease is not None
        if error := self.lease.error(name):
            kind, *parts = error
            raise _ERRORS.get(kind, StorageError)(*parts)
        time.sleep(LOOK_SECONDS)


class TarRows:
    """Members of a tar file, which is read where it is or lies in the cache as it is."""

    unpacked = ""

    def __init__(self, offsets: Ids, sizes: Ids) -> None:
        self.offsets, self.sizes = offsets, sizes

    def write(self, file: Path, shard: Shard, path: Path, room: int) -> None:
        """Never: it stays as it is."""
        raise AssertionError("a tar file is not unpacked")

    def is_whole(self, handle: int, shard: Shard, count: int) -> bool:
        """Whether it has the size of the shard."""
        return os.fstat(handle).st_size == shard.size

    def read(self, handle: int, rows: Ids, start: int) -> list[bytes]:
        """The content of members."""
        return [flat_file.whole(handle, int(self.sizes[row]), int(self.offsets[row])) for row in rows.tolist()]


def limit_rows(rows: Iterable[bytes], room: int) -> Iterator[bytes]:
    """The rows, as long as they fit.

    Raises:
        OutgrownError: if they do not.
    """
    used_bytes = flat_file.overhead(0)
    for row in rows:
        used_bytes += len(row) + flat_file.NUMBER.itemsize
        if used_bytes > room:
            raise OutgrownError
        yield row
