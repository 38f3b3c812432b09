"""The copy of a run in a store, brought to the user's cache to be looked at: all but its checkpoints."""

from __future__ import annotations

import os
from pathlib import Path

from runtime.errors import Busy, CheckpointError, SpecError
from runtime.hardware import disk_space
from runtime.storage.object_store import ObjectStore, StoredObject
from runtime.storage.remote_address import RemoteAddress
from runtime.supervisor.remote_copy.fetch_run import is_small
from runtime.system import file_lock
from runtime.system.console import say_aside
from runtime.system.files import make_folder, read_json, storage_error, write_json
from runtime.system.units import format_bytes

INDEX = ".copied.json"
"""The tags of what was downloaded, so that only what has changed is downloaded again."""
LOCK = ".lock-copied"
WAIT = 60.0
"""Seconds to wait for another command that downloads the same run."""


def is_cached(folder: Path) -> bool:
    """Whether a folder is the copy of a run in a store; it has no checkpoints."""
    return (folder / INDEX).is_file()


def cached_run(address: RemoteAddress) -> Path:
    """The folder with the present copy of a run.

    Args:
        address: of the run.

    Raises:
        SpecError: if it is no address of a store that can be listed.
        RemoteError: if the store gives no answer.
        CheckpointError: if there is no run at this address.
        StorageError: if the cache cannot be written.
        Busy: if another command downloads it, and takes long.
    """
    if not address.writable:
        raise SpecError(
            f"{address} is no folder of an object store", "s3://BUCKET/PATH/RUN, gs://, az://", "name a run there"
        )
    store = ObjectStore(address)
    found = [each for each in store.objects() if is_small(each.name)]
    if "job.yaml" not in {each.name for each in found}:
        runs = [name for name in store.folders() if store.exists(f"{name}/job.yaml")]
        raise CheckpointError(
            f"{address}: there is no run",
            f"runs there: {', '.join(runs[-5:])}" if runs else "the address of a run, as `checkpoint.copy_to` made it",
            f"name one: {address / runs[-1]}" if runs else "correct the address",
        )
    folder = disk_space.runs_folder() / address.scheme / address.host / address.path
    make_folder(folder)
    handle = file_lock.acquire(folder / LOCK, WAIT)
    if handle is None:
        raise Busy(f"{folder}: another command downloads this run", "one at a time", "wait for it")
    try:
        size = _update(store, found, folder)
    except OSError as error:
        raise storage_error(folder, error) from None
    finally:
        os.close(handle)
    if size:
        say_aside(f"{address}: {format_bytes(size)} downloaded to {folder}")
    return folder


def _update(store: ObjectStore, found: list[StoredObject], folder: Path) -> int:
    """Download what has changed, and remove what is gone; returns the bytes."""
    known = read_json(folder / INDEX) or {}
    size = 0
    for each in found:
        if not each.tag or known.get(each.name) != each.tag or not (folder / each.name).is_file():
            size += store.get_file(each.name, folder / each.name)
    for name in known.keys() - {each.name for each in found}:
        (folder / name).unlink(missing_ok=True)
    write_json(folder / INDEX, {each.name: each.tag for each in found})
    return size
