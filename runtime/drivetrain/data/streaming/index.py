"""The index of a streamed data set: the rows of each shard, without the samples. The cache stores it by shard.

A changed shard is indexed again. The run records size and version of every shard.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow
from pyarrow import ArrowException, OSFile, concat_tables, ipc

from drivetrain.data import decoded_size
from drivetrain.data.formats import parquet_file
from drivetrain.data.formats import shards as tables
from drivetrain.data.stateless_random import Ids
from drivetrain.data.streaming import stores
from drivetrain.data.streaming.cache import ShardCache
from drivetrain.data.streaming.shard import TAIL_BYTES, NoRangesError, RangedFile, Shard, ShardStore, unreadable_error
from drivetrain.errors import DataError, nearest
from drivetrain.system.files import blame_storage, sync_file
from drivetrain.system.version import VERSION

SUFFIX = ".index"
SHARD_BYTES = b"bytes"
"""Metadata key of an index: bytes that the shard takes in the cache; without it, these are the bytes of the shard."""
UNLISTED = "\x00\x00"
"""Prefix of columns that the digest leaves out: they follow from other columns, or from the content of the shards."""
ParquetSource = Path | RangedFile
ShardIndexer = Callable[[Path, Shard], "pyarrow.Table"]
"""Returns the index of a shard, made from its file."""
RangedIndexer = Callable[[RangedFile, Shard], "pyarrow.Table | None"]
"""Returns the index of a shard, made from byte ranges of it; None if these would not be much less than the shard."""
PARALLEL_SHARDS = 8
"""Number of shards that are read by ranges at the same time: ranges are small, so the time is that of the round trips."""
SMALL_SHARD = 8 * TAIL_BYTES
"""Bytes; a smaller shard is fetched whole, which takes about as long as a few requests for ranges."""


@dataclass(frozen=True)
class Index:
    """All rows of all shards of one address."""

    shards: tuple[Shard, ...]
    rows: pyarrow.Table
    """One row for each row of the shards, in their order."""
    sizes: Ids
    """Number of rows of each shard."""
    bytes: Ids
    """Approximate bytes of each shard in the cache."""
    indexed_shards: int = 0
    """Number of shards that were indexed now; the cache had the index of the others."""
    ranged_shards: int = 0
    """Number of them that were indexed from byte ranges."""
    ranged_bytes: int = 0
    """Bytes of these ranges."""
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
        """SHA-256 of the names and sizes of the shards and of the listed columns; equal on all machines."""
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
        """Size and version of each shard, by name, as the run stores them."""
        return {shard.name: shard.recorded() for shard in self.shards}


def read(
    store: ShardStore,
    cache: ShardCache,
    index_shard: ShardIndexer,
    purpose: Sequence[str],
    index_ranges: RangedIndexer | None = None,
) -> Index:
    """Return the index of all shards of a store, from the cache or from the shards.

    Args:
        cache: stores the index of each shard.
        index_shard: indexes a shard by its file.
        purpose: what else the index depends on, such as the names of columns.
        index_ranges: indexes a shard by byte ranges of it; None if the format cannot be read so.

    Raises:
        DataError: if a shard cannot be used, or has other columns than the first.
        StorageError: if a shard cannot be fetched, or the cache not be written.
    """
    shards, whole_shards = store.shards(), 0
    # The name depends on everything that the content depends on, so a changed shard never finds an old index.
    paths = [cache.folder / f"{digest([shard.address, shard.identify(), *purpose])}{SUFFIX}" for shard in shards]
    # The indices that this writes are found below, so only the other shards are fetched whole.
    range_bytes = index_by_ranges(store, index_ranges, dict(zip(paths, shards, strict=True))) if index_ranges else {}
    tables = []
    for shard, path in zip(shards, paths, strict=True):
        shard_index = read_stored(path)
        if shard_index is None:
            shard_index = read_shard(store, cache, index_shard, shard)
            store_table(path, shard_index)
            whole_shards += 1
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
    arrays = tuple(shards), rows, sizes, np.array(unpacked_sizes, np.int64)
    return Index(*arrays, whole_shards + len(range_bytes), len(range_bytes), sum(range_bytes.values()))


def digest(parts: Iterable[object]) -> str:
    """A file name for content that depends on these parts, and on the version of this package."""
    return hashlib.sha256(json.dumps([VERSION, *parts], default=str).encode()).hexdigest()[:32]


def read_shard(store: ShardStore, cache: ShardCache, read_file: ShardIndexer, shard: Shard) -> pyarrow.Table:
    """Call `read_file` with the file of a shard, which is local or fetched into the cache.

    Raises:
        DataError: if the shard cannot be used.
        StorageError: if the shard cannot be fetched.
    """
    if file := store.local(shard):
        stores.check_content(shard)
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
    """The stored index of a shard; None if there is none, or it is damaged."""
    with contextlib.suppress(ArrowException, OSError), OSFile(str(path)) as file:
        os.utime(path)  # the cache evicts the oldest files
        return ipc.open_file(file).read_all()
    return None


def store_table(path: Path, table: pyarrow.Table) -> None:
    """Store the index of a shard; raises StorageError if it cannot be written."""
    temporary = path.with_suffix(f".{os.getpid()}-{threading.get_ident()}.writing")
    try:
        with blame_storage(path.parent):
            path.parent.mkdir(parents=True, exist_ok=True)
            with OSFile(str(temporary), "wb") as file, ipc.new_file(file, table.schema) as out:
                out.write_table(table)
            sync_file(temporary)
            os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def index_by_ranges(store: ShardStore, index_ranges: RangedIndexer, shards: Mapping[Path, Shard]) -> dict[str, int]:
    """Store the index of every shard for which byte ranges suffice; returns the fetched bytes of each, by name.

    Args:
        shards: the shards, by the path of their index.

    Raises:
        DataError: if a shard cannot be used, or has changed.
        StorageError: if a shard cannot be read, or an index cannot be written.
    """
    unindexed = [(path, shard) for path, shard in shards.items() if shard.size >= SMALL_SHARD and not path.exists()]
    if not unindexed or store.open_ranged(unindexed[0][1]) is None:
        return {}
    # One program has written all shards: if the labels of the first cannot be read by ranges, those of none can.
    (probe_path, probe), *remaining = unindexed
    probe_bytes = _write_ranged_index(store, index_ranges, probe_path, probe)
    if probe_bytes is None:
        return {}
    fetched: dict[str, int | None] = {probe.name: probe_bytes}
    with ThreadPoolExecutor(PARALLEL_SHARDS) as pool:
        futures = {
            shard.name: pool.submit(_write_ranged_index, store, index_ranges, path, shard) for path, shard in remaining
        }
        try:
            fetched |= {name: future.result() for name, future in futures.items()}
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return {name: size for name, size in fetched.items() if size is not None}


def _write_ranged_index(store: ShardStore, index_ranges: RangedIndexer, path: Path, shard: Shard) -> int | None:
    """Store the index of a shard; returns the number of fetched bytes, or None if the whole shard is needed."""
    file = store.open_ranged(shard)
    assert file is not None
    try:
        shard_index = index_ranges(file, shard)
    except NoRangesError:
        return None
    except DataError:
        store.check(shard)  # ranges of two versions of a shard do not fit together: then this raises instead
        raise
    if shard_index is None:
        return None
    store.check(shard)
    store_table(path, shard_index)
    return file.fetched


def read_columns(file: ParquetSource, columns: Sequence[str], shard: Shard, key: str) -> pyarrow.Table:
    """Read these columns of a shard; class numbers become class names.

    Raises:
        DataError: if the columns do not fit into memory.
        pyarrow.ArrowException, OSError: if the file cannot be read.
    """
    subject = f"shard {shard.address}"
    return tables.class_names(parquet_file.decode(parquet_file.read_table(file, columns, subject, key), subject, key))


def check_columns(columns: Sequence[str], names: Sequence[str], shard: Shard, key: str) -> None:
    """Check that a shard has these columns.

    Raises:
        DataError: for the first missing column; the message begins with `key`, the spec key that names it.
    """
    if missing := [name for name in columns if name not in names]:
        raise DataError(
            f'{key}: shard {shard.address} has no column "{missing[0]}"',
            f"its columns: {', '.join(names)}",
            nearest(missing[0], names) or "name one of its columns",
        )


@contextmanager
def blame_shard(shard: Shard, key: str) -> Iterator[None]:
    """A block that reads a Parquet shard; raises DataError in place of an error of pyarrow.

    A damaged page (an OSError of pyarrow) must not be taken for an error of the cache's disk.
    """
    try:
        yield
    except (ArrowException, OSError) as error:
        if isinstance(error, MemoryError):
            raise decoded_size.too_large_error(f"shard {shard.address} does not fit into memory", key) from None
        raise unreadable_error(shard, key, error, "complete Parquet files with the same columns") from None
