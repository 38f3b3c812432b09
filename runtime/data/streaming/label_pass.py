"""The first pass over shards in a store that reads their labels alone, where that is much less than the shards."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from runtime.data.streaming.index_file import store_table
from runtime.data.streaming.ranged_file import TAIL, NoRangesError, RangedFile
from runtime.data.streaming.shard import Shard, ShardStore
from runtime.errors import DataError

if TYPE_CHECKING:
    import pyarrow

Glance = Callable[[RangedFile, Shard], "pyarrow.Table | None"]
"""Makes the index of a shard from parts of it; None if those would not be much less than the shard."""
AT_ONCE = 8
"""Shards of which parts are read at the same time: a part is small, and its answer takes a while to come."""
SMALL = 8 * TAIL
"""Bytes of a shard that is fetched in about the time of a few requests."""


def read(store: ShardStore, glance: Glance, shards: Mapping[Path, Shard]) -> dict[str, int]:
    """Write the index of every shard of which parts are enough; returns how many bytes of each were fetched.

    Args:
        store: has the shards.
        glance: makes the index of one.
        shards: by the file of their index.

    Raises:
        DataError: if a shard cannot be used, or has changed.
        StorageError: if it cannot be read, or the index not be written.
    """
    wanted = [(path, shard) for path, shard in shards.items() if shard.size >= SMALL and not path.exists()]
    if not wanted or store.ranged(wanted[0][1]) is None:
        return {}
    first, *others = wanted
    # If parts of the first one are not enough, those of the others are not: they are written by one program.
    fetched = {first[1].name: _read(store, glance, *first)}
    if fetched[first[1].name] is None:
        return {}
    with ThreadPoolExecutor(AT_ONCE) as pool:
        futures = {shard.name: pool.submit(_read, store, glance, path, shard) for path, shard in others}
        try:
            fetched |= {name: future.result() for name, future in futures.items()}
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return {name: size for name, size in fetched.items() if size is not None}


def _read(store: ShardStore, glance: Glance, path: Path, shard: Shard) -> int | None:
    """Write the index of a shard; returns how many bytes were fetched, or None if all of it is needed."""
    file = store.ranged(shard)
    assert file is not None
    try:
        found = glance(file, shard)
    except NoRangesError:
        return None
    except DataError:
        store.check(shard)  # parts of two contents are no file
        raise
    if found is None:
        return None
    store.check(shard)
    store_table(path, found)
    return file.fetched
