"""The index of a streamed data set: what is in each shard. It is made once, and kept in the cache by shard.

A shard that has changed has another index. Beside it the run stores size and stamp of every shard.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from runtime.data.stateless_random import Ids
from runtime.data.streaming import label_pass, local_store
from runtime.data.streaming.cache import ShardCache
from runtime.data.streaming.index_file import store_table, stored
from runtime.data.streaming.label_pass import Glance
from runtime.data.streaming.shard import Shard, ShardStore
from runtime.errors import DataError
from runtime.system.version import VERSION

if TYPE_CHECKING:
    import pyarrow

SUFFIX = ".index"
TAKEN = b"bytes"
"""Key of an index's metadata: bytes that the shard takes in the cache; its size if absent."""
UNLISTED = "\x00\x00"
"""Begins the name of a column that is no part of the digest: it follows from the others, or from the content of the shards."""
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

        found = hashlib.sha256(json.dumps([[shard.name, shard.size] for shard in self.shards]).encode())
        found.update(self.sizes.tobytes())
        listed = [name for name in self.rows.column_names if not name.startswith(UNLISTED)]
        table = self.rows.select(listed).combine_chunks().replace_schema_metadata(None)
        sink = pyarrow.BufferOutputStream()
        with pyarrow.ipc.new_stream(sink, table.schema) as stream:
            stream.write_table(table)
        found.update(sink.getvalue())
        return found.hexdigest()

    def recorded(self) -> dict[str, str]:
        """Size and stamp of each shard, by name, as the run stores them."""
        return {shard.name: shard.recorded() for shard in self.shards}


def read(
    store: ShardStore, cache: ShardCache, look: Look, purpose: Sequence[str], glance: Glance | None = None
) -> Index:
    """The index of all shards of a store.

    Args:
        store: the shards.
        cache: keeps what is read.
        look: reads one shard.
        purpose: what else the index depends on, such as the names of columns.
        glance: reads parts of one shard, if that can be enough.

    Raises:
        DataError: if a shard cannot be used, or has other columns than the first.
        StorageError: if a shard cannot be fetched, or the cache not be written.
    """
    from pyarrow import ArrowException, concat_tables

    shards, made = store.shards(), 0
    paths = [cache.folder / f"{digest([shard.address, shard.known_by(), *purpose])}{SUFFIX}" for shard in shards]
    parts = label_pass.read(store, glance, dict(zip(paths, shards, strict=True))) if glance else {}
    tables = []
    for shard, path in zip(shards, paths, strict=True):
        known = stored(path)
        if known is None:
            known = looked(store, cache, look, shard)
            store_table(path, known)
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
    counted = made + len(parts), len(parts), sum(parts.values())
    return Index(tuple(shards), rows, sizes, np.array(taken, np.int64), *counted)


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
