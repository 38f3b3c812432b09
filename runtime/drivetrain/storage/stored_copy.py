"""A copy on this machine of a file or folder in a store. A job that is not streamed reads its remote paths there.

ADDRESS/            named by a digest of the address
  copy.json         which version is the present one, with its files
  VERSION/NAME      the file or folder; named by a digest of names, sizes and tags; complete, as it is renamed at the end; locked
                    (shared) by each process that reads it, and removed when another one is present and nobody does
  VERSION.json      its files
  VERSION.part/     what is being downloaded; files that are complete stay if the command is killed
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from drivetrain.errors import Busy, DataError
from drivetrain.storage import stored_version
from drivetrain.storage.object_store import ObjectStore, Patience, StoredObject
from drivetrain.storage.remote_address import RemoteAddress
from drivetrain.storage.store_errors import RemoteError, Trouble
from drivetrain.storage.stored_files import Selector, list_files
from drivetrain.storage.stored_version import PRESENT, RECORD, files_in, size_of, version_of
from drivetrain.system import file_lock
from drivetrain.system.files import blame_storage, make_folder, read_json, write_json

PATIENCE, HASTE = Patience(retries=30.0), Patience(retries=5.0, silence=10.0, connect=5.0)
"""Without a copy, and with one, which is used if the store stays away for so long."""
MAX_WAIT_SECONDS = 24 * 3600.0
"""Seconds to wait for another command that downloads the same."""
VERSIONS = "DRIVETRAIN_COPIES"
"""The variable in which a process tells its children which versions it has read: they read the same."""
PASSING = (Trouble.AWAY, Trouble.NO_CREDENTIALS)
"""Troubles that a copy makes up for; a store that refuses does not."""
_LOCK = ".lock"


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
    covering, below = _covering(address, cache)
    copied = _own(covering, cache)
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
    covering, below = _covering(address, cache)
    if below:
        fetch(covering, cache, say, selects)
        if copied := find_cached(address, cache):
            return copied
        raise DataError(f"{address}: nothing is there", "a file, or a folder with files", "correct the address")
    _tell(address, None)
    before = _own(address, cache, hold=False)
    try:
        files = list_files(ObjectStore(address.parent, HASTE if before else PATIENCE), address, selects)
    except RemoteError as error:
        if before is None or error.trouble not in PASSING:
            raise
        stored_version.hold(before.path.parent if address.path else before.path)
        copied = replace(before, note=f"{error.given}, so the copy of {before.fetched} is used")
    else:
        copied = _brought(address, cache, files, say)
    _tell(address, copied.version)
    return copied


def _read_versions() -> dict[str, str]:
    """The versions that this process and its parents have read, by address."""
    versions: dict[str, str] = json.loads(os.environ.get(VERSIONS, "{}"))
    return versions


def _tell(address: RemoteAddress, version: str | None) -> None:
    """Let children read this version, or the newest one."""
    versions = _read_versions() | {str(address): version}
    os.environ[VERSIONS] = json.dumps(
        {name: known_version for name, known_version in versions.items() if known_version}
    )


def _own(address: RemoteAddress, cache: Path, *, hold: bool = True) -> StoredCopy | None:
    """The copy of an address itself, which nobody removes while this process lives if it holds it."""
    folder_of_address = _place(address, cache)
    record = read_json(folder_of_address / PRESENT)
    if version := _read_versions().get(str(address)):
        record = read_json(folder_of_address / f"{version}{RECORD}") or record
    if not isinstance(record, dict):
        return None
    folder, files = folder_of_address / str(record["version"]), files_in(record)
    if hold:
        stored_version.hold(folder)
    if any(size_of(folder / file.name) != file.bytes for file in files):
        return None
    size = sum(file.bytes for file in files)
    return StoredCopy(
        address, folder / record["name"], str(record["version"]), size, len(files), str(record["fetched"])
    )


def _brought(
    address: RemoteAddress, cache: Path, files: Sequence[StoredObject], say: Callable[[str], None]
) -> StoredCopy:
    """The copy of these files; what is missing is downloaded."""
    folder_of_address, version, size = _place(address, cache), version_of(files), 0
    single = len(files) == 1 and "/" not in files[0].name and bool(address.path)
    record = {
        "address": str(address),
        "version": version,
        "name": files[0].name if single else address.name if address.path else ".",
        "files": [asdict(file) for file in files],
    }
    with blame_storage(folder_of_address), _lock(folder_of_address, say):
        if any(size_of(folder_of_address / version / file.name) != file.bytes for file in files):
            size = stored_version.make(ObjectStore(address.parent, PATIENCE), files, folder_of_address, version, say)
        present = read_json(folder_of_address / PRESENT)
        if size or not isinstance(present, dict) or present.get("version") != version:
            record["fetched"] = time.strftime("%Y-%m-%d %H:%M:%S")
            write_json(folder_of_address / f"{version}{RECORD}", record)
            write_json(folder_of_address / PRESENT, record)
        copied = _own(address, cache)
        stored_version.remove_others(folder_of_address, version)
    assert copied is not None
    return replace(copied, downloaded=size)


@contextmanager
def _lock(folder: Path, say: Callable[[str], None]) -> Iterator[None]:
    make_folder(folder)
    handle = file_lock.acquire(
        folder / _LOCK,
        MAX_WAIT_SECONDS,
        report_wait=lambda: say(f"{folder}: another command downloads the same; waiting for it"),
    )
    if handle is None:
        raise Busy(f"{folder}: another command downloads the same", "one at a time", "wait for it, or stop it")
    try:
        yield
    finally:
        os.close(handle)


def _covering(address: RemoteAddress, cache: Path) -> tuple[RemoteAddress, str]:
    """The address whose copy has an address, and the path in it: its own, or that of a folder above it."""
    covering, below = address, ""
    while address.writable:
        record = read_json(_place(covering, cache) / PRESENT)
        if isinstance(record, dict) and (not below or _has(record, below)):
            return covering, below
        if not covering.path:
            break
        below = f"{covering.name}/{below}".rstrip("/")
        covering = covering.parent
    return address, ""


def _has(record: Mapping[str, object], below: str) -> bool:
    """Whether a copy of a folder has a file or folder."""
    start = "" if record["name"] == "." else f"{record['name']}/"
    names = [file.name.removeprefix(start) for file in files_in(record)]
    return any(name == below or name.startswith(f"{below}/") for name in names)


def _place(address: RemoteAddress, cache: Path) -> Path:
    return cache / hashlib.sha256(str(address).encode()).hexdigest()[:16]
