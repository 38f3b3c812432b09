"""One version of what is at an address, on this machine: made, locked while it is read, and removed.

A folder that a process has locked is not removed; the kernel gives up the lock with the process.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from drivetrain.errors import StorageError
from drivetrain.storage.object_store import ObjectStore, StoredObject
from drivetrain.storage.stored_files import download
from drivetrain.system import file_lock
from drivetrain.system.files import read_json, sync_folder
from drivetrain.system.units import format_bytes

PRESENT, RECORD, PART, GONE = "copy.json", ".json", ".part", ".gone"
"""The record of the present version, and what follows the name of a version: beside it, while it is made, while it is removed."""
_held: dict[Path, int] = {}
"""Versions that this process has locked, until it ends."""


def version_of(files: Sequence[StoredObject]) -> str:
    """The same as long as nothing changes; a new one each time if the store does not say whether it does."""
    unknown = [time.time_ns()] if any(not file.tag for file in files) else []
    return hashlib.sha256(json.dumps([[asdict(file) for file in files], unknown]).encode()).hexdigest()[:16]


def files_in(record: Mapping[str, object]) -> list[StoredObject]:
    """The files that a record lists."""
    rows = record["files"]
    assert isinstance(rows, list)
    return [StoredObject(**row) for row in rows]


def size_of(path: Path) -> int:
    """Bytes of a file; -1 if it is not there."""
    try:
        return path.stat().st_size
    except OSError:
        return -1


def make(
    store: ObjectStore, files: Sequence[StoredObject], folder: Path, version: str, say: Callable[[str], None]
) -> int:
    """Bring a version to this machine; returns the bytes that were downloaded.

    Args:
        store: opened where the names of the files are relative to.
        folder: the folder of all versions of the address; the caller holds its lock.
        say: takes a line before a download.

    Raises:
        RemoteError, DataError, OSError: as `download`.
        StorageError: if there is not enough space.
    """
    part = folder / f"{version}{PART}"
    part.mkdir(exist_ok=True)
    _take_over(files, folder, part)
    missing = [file for file in files if size_of(part / file.name) != file.bytes]
    size = sum(file.bytes for file in missing)
    _check_space(folder, size)
    if missing:
        description = f"{len(missing):,} files, " if len(missing) > 1 else f"{missing[0].name}, "
        say(f"{store.address}: downloading {description}{format_bytes(size)} to {folder}")
    download(store, missing, part)
    release(folder / version)
    shutil.rmtree(folder / version, ignore_errors=True)  # damaged, or it would have been found
    part.replace(folder / version)
    sync_folder(folder)
    return size


def _take_over(files: Sequence[StoredObject], folder: Path, part: Path) -> None:
    """Link what an earlier version has of files that are the same."""
    record = read_json(folder / PRESENT)
    if not isinstance(record, dict):
        return
    before = set(files_in(record))
    for file in files:
        old, new = folder / str(record["version"]) / file.name, part / file.name
        if file.tag and file in before and size_of(old) == file.bytes and not new.exists():
            new.parent.mkdir(parents=True, exist_ok=True)
            os.link(old, new)


def _check_space(folder: Path, size: int) -> None:
    free = shutil.disk_usage(folder).free
    if size > free:
        raise StorageError(
            f"{folder}: the download takes {format_bytes(size)}, and {format_bytes(free)} are free",
            f"{format_bytes(size)} of free space, or `stream: true`, which needs a part of it at a time",
            "free some space there, or stream the data (docs/data-sources.md)",
        )


def hold(version: Path) -> None:
    """Lock a version until this process ends: nobody removes it."""
    if version in _held:
        return
    with contextlib.suppress(OSError):  # it is gone, or the file system has no locks
        handle = os.open(version, os.O_RDONLY)
        file_lock.lock(handle, shared=True)
        _held[version] = handle


def remove_others(versions: Path, version: str) -> None:
    """Remove versions that no process reads, and what was left of downloads that nobody will continue."""
    for folder in versions.iterdir():
        if not folder.is_dir() or folder.name == version or folder in _held:
            continue
        with file_lock.try_lock(folder) as handle, contextlib.suppress(OSError):
            if handle is not None:
                renamed = folder.with_suffix(GONE)
                folder.replace(renamed)
                shutil.rmtree(renamed, ignore_errors=True)
                if not folder.suffix:  # of a version, not of a download
                    folder.with_suffix(RECORD).unlink(missing_ok=True)


def release(version: Path) -> None:
    """Unlock a version that is damaged and will be replaced."""
    if version in _held:
        os.close(_held.pop(version))
