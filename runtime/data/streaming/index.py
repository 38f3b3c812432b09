"""The index of a streamed data set: what is in each shard. It is made once, and kept in the cache by shard.

A shard that has changed has another index. Beside it the run stores size and stamp of every shard.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from runtime.data.stateless_random import Ids
from runtime.data.streaming import local_store
from runtime.data.streaming.cache import ShardCache
from runtime.data.streaming.shard import Shard, ShardStore
from runtime.errors import DataError
from runtime.system.files import storage_error, sync_file
from runtime.system.version import VERSION

if TYPE_CHECKING:
    import pyarrow

SUFFIX = ".index"
TAKEN = b"bytes"
"""Key of an index's metadata: bytes that the shard takes in the cache; its size if absent."""
Look = Callable[[Path, Shard], "pyarrow.Table"]
"""Makes the index of a shard from its file."""


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

        found = hashlib.sha256(json.dumps([[shard.name, shard.size] for shard in self.shards]).encode())
        found.update(self.sizes.tobytes())
        table = self.rows.combine_chunks().replace_schema_metadata(None)
        sink = pyarrow.BufferOutputStream()
        with pyarrow.ipc.new_stream(sink, table.schema) as stream:
            stream.write_table(table)
        found.update(sink.getvalue())
        return found.hexdigest()

    def recorded(self) -> dict[str, str]:
        """Size and stamp of each shard, by name, as the run stores them."""
        return {shard.name: shard.recorded() for shard in self.shards}


def read(store: ShardStore, cache: ShardCache, look: Look, purpose: Sequence[str]) -> Index:
    """The index of all shards of a store.

    Args:
        store: the shards.
        cache: keeps what is read.
        look: reads one shard.
        purpose: what else the index depends on, such as the names of columns.

    Raises:
        DataError: if a shard cannot be used, or has other columns than the first.
        StorageError: if a shard cannot be fetched, or the cache not be written.
    """
    from pyarrow import ArrowException, concat_tables

    shards, tables, made = store.shards(), [], 0
    for shard in shards:
        path = cache.folder / f"{digest([shard.address, shard.known_by(), *purpose])}{SUFFIX}"
        known = _stored(path)
        if known is None:
            known = looked(store, cache, look, shard)
            _store(path, known)
            made += 1
        tables.append(known)
    try:
        rows = concat_tables(tables, promote_options="permissive")
    except ArrowException as error:
        raise DataError(
            f"{shards[0].address}, ...: the shards have columns of different types: {str(error).splitlines()[0][:200]}",
            "the same columns in every shard",
            "write them again",
        ) from None
    taken = [
        int((each.schema.metadata or {}).get(TAKEN, 0)) or shard.size
        for each, shard in zip(tables, shards, strict=True)
    ]
    sizes = np.array([len(each) for each in tables], np.int64)
    return Index(tuple(shards), rows, sizes, np.array(taken, np.int64), made)


def digest(parts: Iterable[object]) -> str:
    """A name for what depends on these parts."""
    return hashlib.sha256(json.dumps([VERSION, *parts], default=str).encode()).hexdigest()[:32]


def looked(store: ShardStore, cache: ShardCache, look: Look, shard: Shard) -> pyarrow.Table:
    """What `look` makes of a shard, which is read where it is or in the cache.

    Raises:
        DataError: if it cannot be used.
        StorageError: if it cannot be fetched.
    """
    if file := store.local(shard):
        local_store.check_content(shard)
        return look(file, shard)
    name = digest([shard.address, shard.known_by(), "whole"])
    while True:
        cache.make(name, shard.size, lambda path: store.fetch(shard, path))
        with cache.reading(name) as handle:
            if handle is not None and os.fstat(handle).st_size == shard.size:
                return look(cache.path(name), shard)
            if handle is not None:  # damaged by a power loss
                cache.drop(name)


def _stored(path: Path) -> pyarrow.Table | None:
    from pyarrow import ArrowException, OSFile, ipc

    with contextlib.suppress(ArrowException, OSError), OSFile(str(path)) as file:
        os.utime(path)
        return ipc.open_file(file).read_all()
    return None


def _store(path: Path, table: pyarrow.Table) -> None:
    from pyarrow import OSFile, ipc

    new = path.with_suffix(f".{os.getpid()}.writing")
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
