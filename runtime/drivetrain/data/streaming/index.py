"""The index of a streamed data set: what is in each shard. It is made once, and kept in the cache by shard.

A shard that has changed has another index. Beside it the run stores size and stamp of every shard.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from drivetrain.data.stateless_random import Ids
from drivetrain.data.streaming import local_store
from drivetrain.data.streaming.cache import ShardCache
from drivetrain.data.streaming.ranged_file import TAIL_BYTES, NoRangesError, RangedFile
from drivetrain.data.streaming.shard import Shard, ShardStore
from drivetrain.errors import DataError
from drivetrain.system.files import storage_error, sync_file
from drivetrain.system.version import VERSION

if TYPE_CHECKING:
    import pyarrow

SUFFIX = ".index"
SHARD_BYTES = b"bytes"
"""Key of an index's metadata: bytes that the shard takes in the cache; its size if absent."""
UNLISTED = "\x00\x00"
"""Begins the name of a column that is no part of the digest: it follows from the others, or from the content of the shards."""
ShardIndexer = Callable[[Path, Shard], "pyarrow.Table"]
"""Makes the index of a shard from its file."""
RangedIndexer = Callable[[RangedFile, Shard], "pyarrow.Table | None"]
"""Makes the index of a shard from parts of it; None if those would not be much less than the shard."""
PARALLEL_SHARDS = 8
"""Shards of which parts are read at the same time: a part is small, and its answer takes a while to come."""
SMALL_SHARD = 8 * TAIL_BYTES
"""Bytes of a shard that is fetched in about the time of a few requests."""


@dataclass(frozen=True)
class Index:
    """All rows of all shards of one address."""

    shards: tuple[Shard, ...]
    rows: pyarrow.Table
    """One row for each row of the shards, in their order."""
    sizes: Ids
    """Rows of each shard."""
    bytes: Ids
    """Bytes that each shard takes in the cache, about."""
    made: int = 0
    """Shards that were read for it now; the others were known."""
    glanced: int = 0
    """Those of them of which only parts were fetched."""
    fetched: int = 0
    """Bytes of these parts."""
    starts: Ids = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "starts", np.concatenate([np.zeros(1, np.int64), np.cumsum(self.sizes)]))

    def shard_of(self, rows: Ids) -> Ids:
        """The number of the shard of each row."""
        return np.asarray(np.searchsorted(self.starts, rows, side="right") - 1, np.int64)

    def title(self, row: int) -> str:
        """`0003.tar sample 7` for a row."""
        number = int(self.shard_of(np.array([row]))[0])
        return f"{self.shards[number].name} sample {row - int(self.starts[number]) + 1}"

    def digest(self) -> str:
        """SHA-256 of names and sizes of the shards and of what is known about each row; equal on all machines."""
        import pyarrow

        sha256 = hashlib.sha256(json.dumps([[shard.name, shard.size] for shard in self.shards]).encode())
        sha256.update(self.sizes.tobytes())
        listed = [name for name in self.rows.column_names if not name.startswith(UNLISTED)]
        table = self.rows.select(listed).combine_chunks().replace_schema_metadata(None)
        sink = pyarrow.BufferOutputStream()
        with pyarrow.ipc.new_stream(sink, table.schema) as stream:
            stream.write_table(table)
        sha256.update(sink.getvalue())
        return sha256.hexdigest()

    def recorded(self) -> dict[str, str]:
        """Size and stamp of each shard, by name, as the run stores them."""
        return {shard.name: shard.recorded() for shard in self.shards}


def read(
    store: ShardStore,
    cache: ShardCache,
    index_shard: ShardIndexer,
    purpose: Sequence[str],
    make_index: RangedIndexer | None = None,
) -> Index:
    """Return the index of all shards of a store: what the cache has, and the rest made now.

    Args:
        store: the shards.
        cache: keeps what is read.
        index_shard: makes the index of one shard from its file.
        purpose: what else the index depends on, such as the names of columns.
        make_index: makes the index of one from parts of it, if that can be enough.

    Raises:
        DataError: if a shard cannot be used, or has other columns than the first.
        StorageError: if a shard cannot be fetched, or the cache not be written.
    """
    from pyarrow import ArrowException, concat_tables

    shards, new_count = store.shards(), 0
    # The key names everything that the content depends on, so a changed shard never finds an old index.
    paths = [cache.folder / f"{digest([shard.address, shard.identify(), *purpose])}{SUFFIX}" for shard in shards]
    # First those of which parts are enough: what this writes is found below, and only the others are fetched whole.
    parts = index_by_parts(store, make_index, dict(zip(paths, shards, strict=True))) if make_index else {}
    tables = []
    for shard, path in zip(shards, paths, strict=True):
        shard_index = read_stored(path)
        if shard_index is None:
            shard_index = look_at_shard(store, cache, index_shard, shard)
            store_table(path, shard_index)
            new_count += 1
        tables.append(shard_index)
    try:
        rows = concat_tables(tables, promote_options="permissive")
    except ArrowException as error:
        raise DataError(
            f"{shards[0].address}, ...: the shards have columns of different types: {str(error).splitlines()[0][:200]}",
            "the same columns in every shard",
            "write them again",
        ) from None
    unpacked_sizes = [
        int((shard_table.schema.metadata or {}).get(SHARD_BYTES, 0)) or shard.size
        for shard_table, shard in zip(tables, shards, strict=True)
    ]
    sizes = np.array([len(shard_table) for shard_table in tables], np.int64)
    counted = new_count + len(parts), len(parts), sum(parts.values())
    return Index(tuple(shards), rows, sizes, np.array(unpacked_sizes, np.int64), *counted)


def digest(parts: Iterable[object]) -> str:
    """A name for what depends on these parts."""
    return hashlib.sha256(json.dumps([VERSION, *parts], default=str).encode()).hexdigest()[:32]


def look_at_shard(store: ShardStore, cache: ShardCache, read_file: ShardIndexer, shard: Shard) -> pyarrow.Table:
    """Return what `read_file` makes of a shard, which is read where it is or in the cache.

    Raises:
        DataError: if it cannot be used.
        StorageError: if it cannot be fetched.
    """
    if file := store.local(shard):
        local_store.check_content(shard)
        return read_file(file, shard)
    name = digest([shard.address, shard.identify(), "whole"])
    while True:
        cache.make(name, shard.size, lambda path: store.fetch(shard, path))
        with cache.reading(name) as handle:
            if handle is not None and os.fstat(handle).st_size == shard.size:
                return read_file(cache.path(name), shard)
            if handle is not None:  # damaged by a power loss
                cache.drop(name)


def read_stored(path: Path) -> pyarrow.Table | None:
    """The index of a shard; None if it is not there, or damaged."""
    from pyarrow import ArrowException, OSFile, ipc

    with contextlib.suppress(ArrowException, OSError), OSFile(str(path)) as file:
        os.utime(path)
        return ipc.open_file(file).read_all()
    return None


def store_table(path: Path, table: pyarrow.Table) -> None:
    """Write the index of a shard.

    Raises:
        StorageError: if it cannot be written.
    """
    from pyarrow import OSFile, ipc

    new = path.with_suffix(f".{os.getpid()}-{threading.get_ident()}.writing")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with OSFile(str(new), "wb") as file, ipc.new_file(file, table.schema) as out:
            out.write_table(table)
        sync_file(new)
        os.replace(new, path)
    except OSError as error:
        raise storage_error(path.parent, error) from None
    finally:
        new.unlink(missing_ok=True)


def index_by_parts(store: ShardStore, make_index: RangedIndexer, shards: Mapping[Path, Shard]) -> dict[str, int]:
    """Write the index of every shard of which parts are enough; returns how many bytes of each were fetched.

    Args:
        store: has the shards.
        make_index: makes the index of one.
        shards: by the file of their index.

    Raises:
        DataError: if a shard cannot be used, or has changed.
        StorageError: if it cannot be read, or the index not be written.
    """
    unindexed = [(path, shard) for path, shard in shards.items() if shard.size >= SMALL_SHARD and not path.exists()]
    if not unindexed or store.open_ranged(unindexed[0][1]) is None:
        return {}
    # All shards were written by one program: if the labels of the first cannot be read by parts, those of none can.
    (probe_file, probe), *remaining = unindexed
    probe_bytes = _index_shard_by_parts(store, make_index, probe_file, probe)
    if probe_bytes is None:
        return {}
    fetched: dict[str, int | None] = {probe.name: probe_bytes}
    with ThreadPoolExecutor(PARALLEL_SHARDS) as pool:
        futures = {
            shard.name: pool.submit(_index_shard_by_parts, store, make_index, path, shard) for path, shard in remaining
        }
        try:
            fetched |= {name: future.result() for name, future in futures.items()}
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return {name: size for name, size in fetched.items() if size is not None}


def _index_shard_by_parts(store: ShardStore, make_index: RangedIndexer, path: Path, shard: Shard) -> int | None:
    """Write the index of a shard; returns how many bytes were fetched, or None if all of it is needed."""
    file = store.open_ranged(shard)
    assert file is not None
    try:
        shard_index = make_index(file, shard)
    except NoRangesError:
        return None
    except DataError:
        store.check(shard)  # parts of two contents are no file
        raise
    if shard_index is None:
        return None
    store.check(shard)
    store_table(path, shard_index)
    return file.fetched
