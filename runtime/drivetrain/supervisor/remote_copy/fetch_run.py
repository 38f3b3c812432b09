"""Brings a run from a store to this disk: its newest checkpoint that verifies, the best one, all other files.

A run that is only looked at goes to the user's cache, without its checkpoints.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from drivetrain.errors import Busy, CheckpointError, SpecError
from drivetrain.hardware import disk_space
from drivetrain.storage.object_store import ObjectStore, StoredObject
from drivetrain.storage.remote_address import RemoteAddress
from drivetrain.supervisor.remote_copy.copied_files import is_portable, is_small
from drivetrain.supervisor.remote_copy.owner_file import OwnerFile, write_record
from drivetrain.system import file_lock
from drivetrain.system.console import say_aside
from drivetrain.system.files import USER_RWX, make_folder, parse_row, storage_error, sync_folder, write_json
from drivetrain.system.run_files import CHECKPOINTS, JOB_FILE, RunFiles, parse_suffix
from drivetrain.system.units import format_bytes
from drivetrain.training.checkpoints.manifest import (
    MANIFEST,
    MAX_MANIFEST_BYTES,
    all_damaged_error,
    describe_damaged,
    parse_files,
    verify,
)

CACHE_INDEX = ".copied.json"
"""The tags of what was downloaded, so that only what has changed is downloaded again."""
LOCK = ".lock-copied"
LONGEST_DOWNLOAD = 60.0
"""Seconds to wait for another command that downloads the same run."""


def fetch_run(file: OwnerFile, final: Path, report: Callable[[str], None], local_step: int = -1) -> None:
    """Download a run into a folder, which is replaced if the store has a better checkpoint.

    Args:
        file: of the copy, taken by this process.
        report: is told what was found.
        local_step: the step of the newest good checkpoint of the folder; older ones in the store are not used.

    Raises:
        RemoteError: if the store gives no answer.
        StorageError: if the disk does not take it.
        CheckpointError: if there are checkpoints and none verifies.
    """
    store, temporary = file.store, final.with_name(f".tmp-fetched-{final.name}")
    make_folder(final.parent)
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(USER_RWX)
        sizes = {entry.name: entry.bytes for entry in store.objects()}
        name, size = _download_newest(file, sizes, temporary / CHECKPOINTS, report, local_step)
        if name is None and local_step >= 0:
            report(f"{store.address}: using step-{local_step}, which is on this disk")
            return
        size += sum(store.get_file(each, temporary / each, atomic=False) for each in sizes if is_small(each))
        write_record(temporary, file.owner.run, [file.writer])
        _replace_folder(temporary, final)
    except OSError as error:
        raise storage_error(final, error) from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    report(f"{store.address}: {name or 'no checkpoint yet'}, {format_bytes(size)} downloaded to {final}")


def _download_newest(
    file: OwnerFile, sizes: Mapping[str, int], folder: Path, report: Callable[[str], None], local_step: int
) -> tuple[str | None, int]:
    """Download the newest checkpoint that verifies, and the best one that it names; returns its name and the bytes."""
    store, checkpoints = file.store, file.owner.checkpoints
    size, damaged = 0, list[str]()
    for name in sorted((name for name in checkpoints if name.startswith("step-")), key=parse_suffix, reverse=True):
        if parse_suffix(name) <= local_step:
            return None, size
        prefix = f"{CHECKPOINTS}/{checkpoints[name].folder}"
        mismatch = _compare_with_manifest(store, sizes, prefix)
        if mismatch is None:
            size += _download_checkpoint(store, sizes, prefix, folder / name)
            mismatch = verify(folder / name)
        if mismatch is None:
            best = checkpoints[name].best
            if best and best in checkpoints:
                prefix = f"{CHECKPOINTS}/{checkpoints[best].folder}"
                size += _download_checkpoint(store, sizes, prefix, folder / best)
                if mismatch := verify(folder / best):
                    report(f"{store.address}: checkpoint {best} is damaged: {mismatch}; it is not used")
                    shutil.rmtree(folder / best, ignore_errors=True)
            return name, size
        shutil.rmtree(folder / name, ignore_errors=True)
        damaged.append(describe_damaged(name, mismatch))
        report(f"{store.address}: {damaged[-1]}")
    if damaged and local_step < 0:
        raise all_damaged_error(store.address, damaged)
    return None, size


def _compare_with_manifest(store: ObjectStore, sizes: Mapping[str, int], prefix: str) -> str | None:
    """What is wrong with a checkpoint by its manifest and the sizes in the store, before anything large is downloaded."""
    manifest = f"{prefix}/{MANIFEST}"
    try:
        is_readable = manifest in sizes and sizes[manifest] <= MAX_MANIFEST_BYTES
        files = parse_files(parse_row(store.get(manifest)) if is_readable else None)
    except ValueError as wrong:
        return str(wrong)
    for part, entry in files.items():
        if (size := sizes.get(f"{prefix}/{part}")) != entry["bytes"]:
            return f"{part} is missing" if size is None else f"{part} has {size} bytes, expected {entry['bytes']}"
    return None


def _download_checkpoint(store: ObjectStore, sizes: Mapping[str, int], prefix: str, folder: Path) -> int:
    parts = [name.removeprefix(f"{prefix}/") for name in sizes if name.startswith(f"{prefix}/") and is_portable(name)]
    return sum(store.get_file(f"{prefix}/{part}", folder / part, atomic=False) for part in parts)


def _replace_folder(temporary: Path, final: Path) -> None:
    old = final.with_name(f".tmp-old-{final.name}")
    shutil.rmtree(old, ignore_errors=True)
    with contextlib.suppress(FileNotFoundError):
        final.rename(old)
    temporary.rename(final)
    sync_folder(final.parent)
    shutil.rmtree(old, ignore_errors=True)


def is_cached(folder: Path) -> bool:
    """Whether a folder is the copy of a run in a store; it has no checkpoints."""
    return (folder / CACHE_INDEX).is_file()


def update_cached_run(address: RemoteAddress) -> Path:
    """The folder with the present copy of a run.

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
    entries = [entry for entry in store.objects() if is_small(entry.name)]
    if JOB_FILE not in {entry.name for entry in entries}:
        runs = [name for name in store.folders() if store.find_head(f"{name}/{JOB_FILE}")]
        raise CheckpointError(
            f"{address}: there is no run",
            f"runs there: {', '.join(runs[-5:])}" if runs else "the address of a run, as `checkpoint.copy_to` made it",
            f"name one: {address / runs[-1]}" if runs else "correct the address",
        )
    folder = disk_space.find_cache_folder() / disk_space.RUNS_FOLDER / address.scheme / address.host / address.path
    make_folder(folder)
    handle = file_lock.acquire(folder / LOCK, LONGEST_DOWNLOAD)
    if handle is None:
        raise Busy(f"{folder}: another command downloads this run", "one at a time", "wait for it")
    try:
        size = _update(store, entries, folder)
    except OSError as error:
        raise storage_error(folder, error) from None
    finally:
        os.close(handle)
    if size:
        say_aside(f"{address}: {format_bytes(size)} downloaded to {folder}")
    return folder


def _update(store: ObjectStore, entries: list[StoredObject], folder: Path) -> int:
    """Download what has changed, and remove what is gone; returns the bytes."""
    tags = RunFiles(folder).read_object(CACHE_INDEX)
    size = 0
    for entry in entries:
        if not entry.tag or tags.get(entry.name) != entry.tag or not (folder / entry.name).is_file():
            size += store.get_file(entry.name, folder / entry.name)
    for name in tags.keys() - {entry.name for entry in entries}:
        (folder / name).unlink(missing_ok=True)
    write_json(folder / CACHE_INDEX, {entry.name: entry.tag for entry in entries})
    return size
