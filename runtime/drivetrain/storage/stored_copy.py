"""A copy on this machine of a file or folder in a store. A job that is not streamed reads its remote paths there.

ADDRESS/            named by a digest of the address
  copy.json         which version is the present one, with its files
  VERSION/NAME      the file or folder; named by a digest of names, sizes and tags; complete, as it is renamed at the end; locked
                    (shared) by each process that reads it, and removed when another one is present and nobody does
  VERSION.json      its files
  VERSION.part/     what is being downloaded; files that are complete stay if the command is killed
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from drivetrain.errors import Busy, DataError, StorageError
from drivetrain.storage.object_store import ObjectStore, Patience, StoredObject
from drivetrain.storage.remote_address import RemoteAddress
from drivetrain.storage.store_errors import RemoteError, Trouble
from drivetrain.storage.stored_files import Selector, download, list_files
from drivetrain.system import file_lock
from drivetrain.system.files import blame_storage, make_folder, read_json, sync_folder, write_json
from drivetrain.system.units import format_bytes

PATIENCE, HASTE = Patience(retries=30.0), Patience(retries=5.0, silence=10.0, connect=5.0)
"""Without a copy, and with one, which is used if the store stays away for so long."""
MAX_WAIT_SECONDS = 24 * 3600.0
"""Seconds to wait for another command that downloads the same."""
VERSIONS = "DRIVETRAIN_COPIES"
"""The variable in which a process tells its children which versions it has read: they read the same."""
PASSING = (Trouble.AWAY, Trouble.NO_CREDENTIALS)
"""Troubles that a copy makes up for; a store that refuses does not."""
_LOCK = ".lock"
PRESENT, RECORD, PART, GONE = "copy.json", ".json", ".part", ".gone"
"""The record of the present version, and what follows the name of a version: beside it, while it is made, while it is removed."""
_locked: dict[Path, int] = {}
"""Versions that this process has locked, until it ends; the kernel gives up the lock with the process."""


@dataclass(frozen=True)
class StoredCopy:
    """What this machine has of an address.

    Args:
        address: of a file, or of a folder of a bucket.
        path: of the copy, with the name that it has in the store.
        fetched: when, in words.
        downloaded: bytes that this call has downloaded.
        note: why the store was not asked whether it has changed; empty if it was.
    """

    address: RemoteAddress
    path: Path
    version: str
    bytes: int
    files: int
    fetched: str
    downloaded: int = 0
    note: str = ""


def find_cached(address: RemoteAddress, cache: Path) -> StoredCopy | None:
    """The newest copy in a cache, or the one that the parent of this process reads; None if there is none, or a file of it
    is gone. The store is not asked.

    Args:
        address: of a file or folder; that of a part of a folder whose copy is there will do.
    """
    covering, below = _find_covering(address, cache)
    copied = _read_copy(covering, cache)
    if copied is None or not below:
        return copied
    path = copied.path / below
    return replace(copied, address=address, path=path) if path.exists() else None


def fetch(address: RemoteAddress, cache: Path, say: Callable[[str], None], selects: Selector) -> StoredCopy:
    """The present content of an address; what is in the cache already is not downloaded again.

    Args:
        address: of a file, or of a folder of a bucket.
        say: takes a line before a download.
        selects: which files of a folder are needed, by their names.

    Raises:
        RemoteError: if the store does not give it, and there is no copy.
        DataError: if nothing is there, or it changes while it is downloaded.
        StorageError: if the cache cannot be written.
        Busy: if another command downloads it for a day.
    """
    covering, below = _find_covering(address, cache)
    if below:
        fetch(covering, cache, say, selects)
        if copied := find_cached(address, cache):
            return copied
        raise DataError(f"{address}: nothing is there", "a file, or a folder with files", "correct the address")
    _set_version(address, None)
    before = _read_copy(address, cache, hold=False)
    try:
        files = list_files(ObjectStore(address.parent, HASTE if before else PATIENCE), address, selects)
    except RemoteError as error:
        if before is None or error.trouble not in PASSING:
            raise
        _lock_version(before.path.parent if address.path else before.path)
        copied = replace(before, note=f"{error.given}, so the copy of {before.fetched} is used")
    else:
        copied = _update(address, cache, files, say)
    _set_version(address, copied.version)
    return copied


def _read_versions() -> dict[str, str]:
    """The versions that this process and its parents have read, by address."""
    versions: dict[str, str] = json.loads(os.environ.get(VERSIONS, "{}"))
    return versions


def _set_version(address: RemoteAddress, version: str | None) -> None:
    """Let children read this version, or the newest one."""
    versions = _read_versions() | {str(address): version}
    os.environ[VERSIONS] = json.dumps({name: value for name, value in versions.items() if value})


def _read_copy(address: RemoteAddress, cache: Path, *, hold: bool = True) -> StoredCopy | None:
    """The copy of an address itself, which nobody removes while this process lives if it holds it."""
    folder_of_address = _find_folder(address, cache)
    record = read_json(folder_of_address / PRESENT)
    if version := _read_versions().get(str(address)):
        record = read_json(folder_of_address / f"{version}{RECORD}") or record
    if not isinstance(record, dict):
        return None
    folder, files = folder_of_address / str(record["version"]), _list_recorded(record)
    if hold:
        _lock_version(folder)
    if any(_read_size(folder / file.name) != file.bytes for file in files):
        return None
    size = sum(file.bytes for file in files)
    return StoredCopy(
        address, folder / record["name"], str(record["version"]), size, len(files), str(record["fetched"])
    )


def _update(
    address: RemoteAddress, cache: Path, files: Sequence[StoredObject], say: Callable[[str], None]
) -> StoredCopy:
    """The copy of these files; what is missing is downloaded."""
    folder_of_address, version, size = _find_folder(address, cache), _name_version(files), 0
    is_single = len(files) == 1 and "/" not in files[0].name and bool(address.path)
    record = {
        "address": str(address),
        "version": version,
        "name": files[0].name if is_single else address.name if address.path else ".",
        "files": [asdict(file) for file in files],
    }
    make_folder(folder_of_address)
    busy = Busy(f"{folder_of_address}: another command downloads the same", "one at a time", "wait for it, or stop it")
    with blame_storage(folder_of_address):
        handle = file_lock.acquire(
            folder_of_address / _LOCK, MAX_WAIT_SECONDS, report_wait=lambda: say(f"{busy.given}; waiting for it")
        )
    if handle is None:
        raise busy
    with blame_storage(folder_of_address), os.fdopen(handle, "rb"):
        if any(_read_size(folder_of_address / version / file.name) != file.bytes for file in files):
            size = _make_version(ObjectStore(address.parent, PATIENCE), files, folder_of_address, version, say)
        present = read_json(folder_of_address / PRESENT)
        if size or not isinstance(present, dict) or present.get("version") != version:
            record["fetched"] = time.strftime("%Y-%m-%d %H:%M:%S")
            write_json(folder_of_address / f"{version}{RECORD}", record)
            write_json(folder_of_address / PRESENT, record)
        copied = _read_copy(address, cache)
        _remove_others(folder_of_address, version)
    assert copied is not None
    return replace(copied, downloaded=size)


def _find_covering(address: RemoteAddress, cache: Path) -> tuple[RemoteAddress, str]:
    """The address whose copy has an address, and the path in it: its own, or that of a folder above it."""
    covering, below = address, ""
    while address.writable:
        record = read_json(_find_folder(covering, cache) / PRESENT)
        if isinstance(record, dict) and (not below or _contains(record, below)):
            return covering, below
        if not covering.path:
            break
        below = f"{covering.name}/{below}".rstrip("/")
        covering = covering.parent
    return address, ""


def _contains(record: Mapping[str, object], below: str) -> bool:
    """Whether a copy of a folder has a file or folder."""
    start = "" if record["name"] == "." else f"{record['name']}/"
    names = [file.name.removeprefix(start) for file in _list_recorded(record)]
    return any(name == below or name.startswith(f"{below}/") for name in names)


def _find_folder(address: RemoteAddress, cache: Path) -> Path:
    return cache / hashlib.sha256(str(address).encode()).hexdigest()[:16]


def _name_version(files: Sequence[StoredObject]) -> str:
    """The same as long as nothing changes; a new one each time if the store does not say whether it does."""
    unknown = [time.time_ns()] if any(not file.tag for file in files) else []
    return hashlib.sha256(json.dumps([[asdict(file) for file in files], unknown]).encode()).hexdigest()[:16]


def _list_recorded(record: Mapping[str, Any]) -> list[StoredObject]:
    """The files that a record lists."""
    return [StoredObject(**row) for row in record["files"]]


def _read_size(path: Path) -> int:
    """Bytes of a file; -1 if it is not there."""
    try:
        return path.stat().st_size
    except OSError:
        return -1


def _make_version(
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
    missing = [file for file in files if _read_size(part / file.name) != file.bytes]
    size = sum(file.bytes for file in missing)
    _check_space(folder, size)
    if missing:
        description = f"{len(missing):,} files, " if len(missing) > 1 else f"{missing[0].name}, "
        say(f"{store.address}: downloading {description}{format_bytes(size)} to {folder}")
    download(store, missing, part)
    # It is damaged, or it would not be made.
    if (handle := _locked.pop(folder / version, None)) is not None:
        os.close(handle)
    shutil.rmtree(folder / version, ignore_errors=True)
    part.replace(folder / version)
    sync_folder(folder)
    return size


def _take_over(files: Sequence[StoredObject], folder: Path, part: Path) -> None:
    """Link what an earlier version has of files that are the same."""
    record = read_json(folder / PRESENT)
    if not isinstance(record, dict):
        return
    before = set(_list_recorded(record))
    for file in files:
        old, new = folder / str(record["version"]) / file.name, part / file.name
        if file.tag and file in before and _read_size(old) == file.bytes and not new.exists():
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


def _lock_version(version: Path) -> None:
    """Lock a version until this process ends: nobody removes it."""
    if version in _locked:
        return
    with contextlib.suppress(OSError):  # it is gone, or the file system has no locks
        handle = os.open(version, os.O_RDONLY)
        file_lock.lock(handle, shared=True)
        _locked[version] = handle


def _remove_others(versions: Path, version: str) -> None:
    """Remove versions that no process reads, and what was left of downloads that nobody will continue."""
    for folder in versions.iterdir():
        if not folder.is_dir() or folder.name == version or folder in _locked:
            continue
        with file_lock.try_lock(folder) as handle, contextlib.suppress(OSError):
            if handle is not None:
                renamed = folder.with_suffix(GONE)
                folder.replace(renamed)
                shutil.rmtree(renamed, ignore_errors=True)
                if not folder.suffix:  # of a version, not of a download
                    folder.with_suffix(RECORD).unlink(missing_ok=True)
