"""Reads rows of shards: from the shard's own file, or from the cache, into which the shard is fetched first."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Protocol

import numpy as np

from drivetrain.data.stateless_random import Ids
from drivetrain.data.streaming.cache import Lease, ShardCache
from drivetrain.data.streaming.index import Index, digest
from drivetrain.data.streaming.shard import Shard, ShardStore
from drivetrain.errors import DataError, StorageError
from drivetrain.system.disk_cache import WHOLE

POLL_SECONDS = 0.02
"""Seconds between two checks of a worker process whether a shard has been fetched."""
_NUMBER = np.dtype("<u8")
"""Type of the offsets and of the number of rows in the cache."""
_ERRORS = {"DataError": DataError, "StorageError": StorageError}
"""Classes of the errors that a lease can hold, by name."""


class Rows(Protocol):
    """How the rows of a shard are stored in a file."""

    @property
    def unpacked(self) -> str:
        """How a shard becomes what is in the cache, in words; empty if it stays as it is."""
        ...

    def write(self, file: Path, shard: Shard, path: Path, room: int) -> None:
        """Unpack a shard; raises OutgrownError if it takes more than `room` bytes."""
        ...

    def is_whole(self, handle: int, shard: Shard, count: int) -> bool:
        """Whether an open file of the cache is complete for a shard with `count` rows."""
        ...

    def read(self, handle: int, rows: Ids, start: int) -> list[bytes]:
        """Read rows of an open file; `rows` are row numbers of the index, of which `start` is the shard's first."""
        ...


class OutgrownError(Exception):
    """An unpacked shard takes more space than was reserved for it."""


@dataclass
class ShardReader:
    """Reads the rows of an index."""

    store: ShardStore
    index: Index
    cache: ShardCache
    rows: Rows
    lease: Lease | None = None
    """The lease of what fetches ahead; None if nothing does."""
    ranks: Mapping[int, int] = field(default_factory=dict)
    """Order in which batches need the shards, as far as it is known: 0 is at once."""
    end_ahead: Callable[[], None] | None = None
    """Ends what fetches ahead."""
    owner: int = field(default_factory=os.getpid)
    """Id of the process that fetches; its worker processes wait for it."""
    sizes: dict[int, int] = field(default_factory=dict)
    """Bytes that shards take in the cache, for those that took more than the index says."""

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"lease": None, "end_ahead": None}

    def read(self, rows: Ids) -> list[bytes]:
        """Return the bytes of these rows of the index, in their order.

        Raises:
            DataError: if a shard has changed.
            StorageError: if it cannot be fetched.
        """
        contents: list[bytes] = [b""] * len(rows)
        shards = self.index.shard_of(rows)
        # A shard that is needed longest is read last: shards that were read already can make room for it.
        for shard in sorted(set(shards.tolist()), key=lambda shard: (self.ranks.get(shard, len(self.ranks)), shard)):
            positions = np.flatnonzero(shards == shard)
            first_row = int(self.index.starts[shard])
            with self._open(shard) as handle:
                for position, data in zip(
                    positions.tolist(), self.rows.read(handle, rows[positions], first_row), strict=True
                ):
                    contents[position] = data
        return contents

    def cached(self) -> list[int]:
        """The numbers of the shards that are read from the cache."""
        return [shard for shard in range(len(self.index.shards)) if self.in_place(shard) is None]

    def is_remote(self) -> bool:
        """Whether the shards come from a store."""
        return self.store.local(self.index.shards[0]) is None

    def in_place(self, shard: int) -> Path | None:
        """The file of a shard that is read without the cache; None if it is read from the cache."""
        return None if self.rows.unpacked else self.store.local(self.index.shards[shard])

    def name(self, shard: int) -> str:
        """The name of a shard's rows in the cache."""
        indexed = self.index.shards[shard]
        return digest([indexed.address, indexed.identify(), self.rows.unpacked or "whole"])

    def size(self, shard: int) -> int:
        """Approximate bytes that a shard takes in the cache."""
        return self.sizes.get(shard, int(self.index.bytes[shard]))

    def count_packed_bytes(self, shard: int) -> int:
        """Bytes of the packed file that is in the cache beside the rows while a shard is unpacked."""
        indexed = self.index.shards[shard]
        return indexed.size if self.rows.unpacked and not self.store.local(indexed) else 0

    def fetch(self, shard: int, *, urgent: bool) -> bool:
        """Put a shard into the cache; returns whether it is there.

        If it is not urgent, it takes no space from shards that this run needs, and may therefore be left out.

        Raises:
            DataError: if the shard has changed.
            StorageError: if it cannot be fetched.
        """
        indexed, name = self.index.shards[shard], self.name(shard)
        room = self.size(shard)
        local = self.store.local(indexed)
        if local:
            self.store.check(indexed)
        while True:
            packed_size = self.count_packed_bytes(shard)
            write = partial(self._make, indexed, local, room)
            try:
                rank = self.ranks.get(shard, 0)
                keep = None if urgent else [self.name(shard_number) for shard_number in list(self.ranks)]
                return self.cache.make(name, room + packed_size, write, rank, keep)
            except OutgrownError:  # the index holds only an estimate
                room *= 2
                self.sizes[shard] = room

    def _make(self, shard: Shard, local: Path | None, room: int, new: Path) -> None:
        """Write the rows of a shard, as the cache stores them, to `new`."""
        counts = self.cache.counts
        with counts.count_busy():
            if not self.rows.unpacked:
                self._fetch(shard, new)
                return
            packed_file = local or new.with_suffix(WHOLE)
            try:
                if not local:
                    self._fetch(shard, packed_file)
                with counts.count_seconds("unpacked"):
                    self.rows.write(packed_file, shard, new, room)
            finally:
                if not local:
                    packed_file.unlink(missing_ok=True)
        if local:
            self.store.check(shard)

    def _fetch(self, shard: Shard, path: Path) -> None:
        with self.cache.counts.count_seconds("received"):
            self.store.fetch(shard, path)
        self.cache.counts.add(shard.address, shard.size)

    @contextlib.contextmanager
    def _open(self, shard: int) -> Iterator[int]:
        """Yield an open file with the rows of a shard; waits until the cache has them."""
        if local_path := self.in_place(shard):
            self.store.check(self.index.shards[shard])
            handle = os.open(local_path, os.O_RDONLY)
            try:
                yield handle
            finally:
                os.close(handle)
            return
        name = self.name(shard)
        waiting_since = 0.0  # 0: the shard was there at once
        while True:
            with self.cache.reading(name) as cached:
                indexed, count = self.index.shards[shard], int(self.index.sizes[shard])
                if cached is not None and self.rows.is_whole(cached, indexed, count):
                    if waiting_since:
                        self.cache.counts.add_wait(time.monotonic() - waiting_since)
                    yield cached
                    return
                if cached is not None:
                    self.cache.drop(name)
            waiting_since = waiting_since or time.monotonic()
            if self.lease is not None and os.getpid() != self.owner:
                self._wait(name)
            else:
                self.fetch(shard, urgent=True)

    def _wait(self, name: str) -> None:
        """Wait in a worker process, which fetches nothing itself: a connection does not survive a fork."""
        assert self.lease is not None
        if error := self.lease.error(name):
            kind, *parts = error
            raise _ERRORS.get(kind, StorageError)(*parts)
        time.sleep(POLL_SECONDS)


class FlatRows:
    """Rows that the cache stores as bytes in one file, so that any of them is one read.

    row 0, row 1, ...         bytes
    offsets                   rows + 1 numbers, uint64: where each row starts, and where the last one ends
    number of rows            uint64
    """

    def unpack(self, file: Path, shard: Shard) -> Iterator[bytes]:
        """Yield the bytes of each row of a shard."""
        raise NotImplementedError

    def write(self, file: Path, shard: Shard, path: Path, room: int) -> None:
        """Write all rows of the shard `file`, their offsets and their number to `path`, with at most `room` bytes."""
        offsets = [0]
        with path.open("wb") as out:
            for row in self.unpack(file, shard):
                offsets.append(offsets[-1] + len(row))
                if offsets[-1] + count_overhead(len(offsets) - 1) > room:
                    raise OutgrownError
                out.write(row)
            out.write(np.array([*offsets, len(offsets) - 1], _NUMBER).tobytes())

    def is_whole(self, handle: int, shard: Shard, count: int) -> bool:
        """Whether an open file ends like one with `count` rows; a power loss may leave it empty, cut off or full of zeros."""
        offsets_start = os.fstat(handle).st_size - count_overhead(count)
        end = [offsets_start, count]
        return offsets_start >= 0 and _read_numbers(handle, offsets_start + count * _NUMBER.itemsize, 2) == end

    def read(self, handle: int, rows: Ids, start: int) -> list[bytes]:
        """The bytes of some rows of the index, from the open file of a shard that begins with the row `start`."""
        end = os.fstat(handle).st_size - _NUMBER.itemsize
        (count,) = _read_numbers(handle, end, 1)
        offsets_start = end - (count + 1) * _NUMBER.itemsize
        contents = []
        for row in (rows - start).tolist():
            first, stop = _read_numbers(handle, offsets_start + row * _NUMBER.itemsize, 2)
            contents.append(_read_bytes(handle, stop - first, first))
        return contents


def count_overhead(rows: int) -> int:
    """Bytes of a file of `FlatRows` with so many rows in addition to the bytes of the rows."""
    return (rows + 2) * _NUMBER.itemsize


def _read_bytes(handle: int, size: int, offset: int) -> bytes:
    """Read `size` bytes of an open file from `offset` on; fewer only at its end (one `pread` may return fewer)."""
    data = os.pread(handle, size, offset)
    while len(data) < size and (chunk := os.pread(handle, size - len(data), offset + len(data))):
        data += chunk
    return data


def _read_numbers(handle: int, offset: int, count: int) -> list[int]:
    numbers: list[int] = np.frombuffer(os.pread(handle, count * _NUMBER.itemsize, offset), _NUMBER).tolist()
    return numbers


class TarRows:
    """Images that are members of a tar file; the cache stores the tar file unchanged."""

    unpacked = ""

    def __init__(self, offsets: Ids, sizes: Ids) -> None:
        self.offsets, self.sizes = offsets, sizes

    def write(self, file: Path, shard: Shard, path: Path, room: int) -> None:
        """Never called: `unpacked` is empty."""
        raise AssertionError("a tar file is not unpacked")

    def is_whole(self, handle: int, shard: Shard, count: int) -> bool:
        """Whether an open file has the size of the shard."""
        return os.fstat(handle).st_size == shard.size

    def read(self, handle: int, rows: Ids, start: int) -> list[bytes]:
        """Read the content of members."""
        return [_read_bytes(handle, int(self.sizes[row]), int(self.offsets[row])) for row in rows.tolist()]
