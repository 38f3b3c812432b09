"""A copy on this machine of a file or folder in a store, which a job reads in its place.

ADDRESS-CONTENT/     named by digests of the address, and of the names, sizes and tags of its files
  copy.json          which files they are; written last
  files/NAME         the file or folder
ADDRESS.lock         held by the process that downloads

Other content of an address is downloaded whole, into another folder: runs that read the earlier one go on. A folder that nothing
has used for a month is removed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from urllib.parse import unquote

from drivetrain.errors import DataError, StorageError
from drivetrain.storage.object_store import ObjectStore, Patience, StoredObject
from drivetrain.storage.remote_address import RemoteAddress
from drivetrain.storage.store_errors import RemoteError, Trouble
from drivetrain.system import file_lock
from drivetrain.system.download_progress import Progress
from drivetrain.system.files import blame_storage, make_folder, read_json, write_json
from drivetrain.system.units import format_bytes

Selector = Callable[[str], bool]
"""Whether a file of a folder is needed, by its path relative to the folder."""
PATIENCE, HASTE = Patience(retries=30.0), Patience(retries=5.0, silence=10.0, connect=5.0)
"""Without a copy, and with one, which is used if the store stays away for so long."""
PARALLEL_DOWNLOADS = 8
UNUSED_SECONDS = 30 * 86_400.0
"""Age of the last use after which a copy is removed when its address has other content."""
FOLDERS = "DRIVETRAIN_COPIES"
"""The variable in which a process tells its children which copy it reads of each address: they read the same."""
_RECORD, _FILES = "copy.json", "files"


@dataclass(frozen=True)
class StoredCopy:
    """State of the local copy of an address."""

    address: RemoteAddress
    """Of a file, or of a folder of a bucket."""
    path: Path
    """The file or folder here, with the name that it has in the store."""
    bytes: int
    files: int
    fetched: str
    """When, in words."""
    downloaded: int = 0
    """Bytes that this call has downloaded."""
    note: str = ""
    """Why the store was not asked whether it has changed; empty if it was."""


def find_cached(address: RemoteAddress, cache: Path) -> StoredCopy | None:
    """Find the newest copy of an address, or the one that the parent of this process reads, without asking the store.

    A folder may also lie in the copy of the folder around it.
    """
    told_folder = _read_told().get(str(address))
    candidates = [cache / told_folder] if told_folder else _list_folders(address, cache)
    own_copy = next((copy for folder in candidates if (copy := _read_copy(address, folder))), None)
    outer_copy = find_cached(address.parent, cache) if address.path and not own_copy else None
    return _take_part(outer_copy, address) if outer_copy else own_copy


def _list_folders(address: RemoteAddress, cache: Path) -> list[Path]:
    """List the whole copies of an address, that with the latest use first."""
    records = sorted(cache.glob(f"{_digest(str(address))}-*/{_RECORD}"), key=lambda record: -record.stat().st_mtime)
    return [record.parent for record in records]


def _take_part(outer_copy: StoredCopy, address: RemoteAddress) -> StoredCopy | None:
    """Take the folder of an address in the copy of the folder around it; None if that has none of this name."""
    path = outer_copy.path / address.name
    if not path.is_dir():
        return None
    sizes = [file.stat().st_size for file in path.rglob("*") if file.is_file()]
    return replace(outer_copy, address=address, path=path, bytes=sum(sizes), files=len(sizes))


def fetch(address: RemoteAddress, cache: Path, say: Callable[[str], None], selects: Selector) -> StoredCopy:
    """Copy the present content of an address, unless the cache has it.

    Args:
        address: of a file, or of a folder of a bucket.
        say: takes lines about a download.
        selects: which files of a folder are needed, by their names.

    Raises:
        RemoteError: if the store does not give it, and there is no copy.
        DataError: if nothing is there, or it changes while it is downloaded.
        StorageError: if the cache cannot be written.
    """
    _tell_children(address, "")
    before = find_cached(address, cache)
    if before and not _list_folders(address, cache):
        part = _take_part(fetch(address.parent, cache, say, selects), address)
        if part:
            return part
    try:
        files = _list_files(ObjectStore(address.parent, HASTE if before else PATIENCE), address, selects)
    except RemoteError as error:
        # A copy makes up for a store that is away, not for one that refuses.
        if before is None or error.trouble not in (Trouble.AWAY, Trouble.NO_CREDENTIALS):
            raise
        _tell_children(address, before.path.relative_to(cache).parts[0])
        return replace(before, note=f"{error.given}, so the copy of {before.fetched} is used")
    # A server that does not say whether a file changes is asked for all of it each time.
    unknown_tags = [time.time_ns()] if any(not file.tag for file in files) else []
    content = _digest(json.dumps([[asdict(file) for file in files], unknown_tags]))
    folder = cache / f"{_digest(str(address))}-{content}"
    wait = f"{folder}: another command downloads the same; waiting for it"
    downloaded = 0
    make_folder(cache)
    with blame_storage(folder):
        handle = file_lock.acquire(cache / f"{_digest(str(address))}.lock", math.inf, report_wait=lambda: say(wait))
        assert handle is not None
        with os.fdopen(handle, "rb"):
            if _read_copy(address, folder) is None:
                downloaded = _download(address, files, folder, say)
                _remove_unused(cache, address, folder)
            copy = _read_copy(address, folder)
    assert copy is not None
    _tell_children(address, folder.name)
    return replace(copy, downloaded=downloaded)


def _list_files(parent: ObjectStore, address: RemoteAddress, selects: Selector) -> list[StoredObject]:
    """List the file at an address, or the files of a folder that are needed, by names relative to its parent."""
    if not address.path and not address.writable:
        raise DataError(f"{address} names no file", "the address of a file, as a web server lists none", "name a file")
    # The client itself percent-encodes the address of a web server.
    name = address.name if address.writable else unquote(address.name)
    file = parent.find_head(name) if address.path else None
    files, prefix = [file] if file else [], f"{address.name}/" if address.path else ""
    if address.writable and not (file and file.bytes):  # an empty object may stand for a folder
        entries = parent.objects(prefix)
        folders = {entry.name[:end] for entry in entries for end, letter in enumerate(entry.name) if letter == "/"}
        files = [
            entry for entry in entries if entry.name.startswith(prefix) and (entry.bytes or entry.name not in folders)
        ] or files
    files = [file for file in files if selects(file.name.removeprefix(prefix))]
    if not files:
        raise DataError(f"{address}: nothing is there", "a file, or a folder with files", "correct the address")
    for file in files:
        if set(file.name.split("/")) & {"", ".", ".."} or "\0" in file.name:
            raise DataError(
                f"{address}: the name {file.name!r} cannot be that of a file here",
                "names without empty parts and dots",
                "rename it there",
            )
    return files


def _download(address: RemoteAddress, files: Sequence[StoredObject], folder: Path, say: Callable[[str], None]) -> int:
    """Download all files into a folder in place of what a killed process has left of it; returns their bytes."""
    size, free = sum(file.bytes for file in files), shutil.disk_usage(folder.parent).free
    if size > free:
        raise StorageError(
            f"{folder}: the download takes {format_bytes(size)}, and {format_bytes(free)} are free",
            f"{format_bytes(size)} of free space",
            "free some space there, or read the data piece by piece with code of your own (docs/data-sources.md)",
        )
    shutil.rmtree(folder, ignore_errors=True)
    description = f"{len(files):,} files" if len(files) > 1 else files[0].name
    say(f"{address.parent}: downloading {description}, {format_bytes(size)} to {folder}")
    store, progress = ObjectStore(address.parent, PATIENCE), Progress(str(address), size, say)
    is_stopped = threading.Event()

    def count(added: int) -> None:
        if is_stopped.is_set():
            raise CancelledError
        progress.add(added)

    def download(file: StoredObject) -> None:
        path = folder / _FILES / file.name
        store.get_file(file.name, path, count)
        if path.stat().st_size != file.bytes:
            raise DataError(
                f"{store.address / file.name} changed while it was downloaded",
                "data that nobody writes to",
                "call the command again when it is complete",
            )

    with ThreadPoolExecutor(PARALLEL_DOWNLOADS) as pool:
        try:
            for future in as_completed([pool.submit(download, file) for file in files]):
                future.result()
        except BaseException:  # also a stop signal: it must not wait for large files
            is_stopped.set()
            pool.shutdown(cancel_futures=True)
            raise
    is_single = len(files) == 1 and "/" not in files[0].name and bool(address.path)
    record = {
        "name": files[0].name if is_single else address.name if address.path else ".",
        "files": [[file.name, file.bytes] for file in files],
        "fetched": time.strftime("%Y-%m-%d %H:%M:%S"),
    }
    write_json(folder / _RECORD, record)
    return size


def _read_copy(address: RemoteAddress, folder: Path) -> StoredCopy | None:
    """Read the copy in a folder, and note that it is used; None if a file of it is missing or has another size."""
    record = read_json(folder / _RECORD)
    if not isinstance(record, dict):
        return None
    for name, size in record["files"]:
        path = folder / _FILES / name
        if not path.is_file() or path.stat().st_size != size:
            return None
    with contextlib.suppress(OSError):  # a cache that only others write
        os.utime(folder / _RECORD)
    total = sum(size for _, size in record["files"])
    return StoredCopy(address, folder / _FILES / record["name"], total, len(record["files"]), str(record["fetched"]))


def _remove_unused(cache: Path, address: RemoteAddress, new_folder: Path) -> None:
    """Remove earlier content of an address that nothing has used for long, and unfinished downloads."""
    for folder in cache.glob(f"{_digest(str(address))}-*"):
        record = folder / _RECORD
        is_unused = not record.exists() or time.time() - record.stat().st_mtime > UNUSED_SECONDS
        if folder != new_folder and is_unused:
            shutil.rmtree(folder, ignore_errors=True)


def _read_told() -> dict[str, str]:
    """Read which folders this process and its parents read, by address."""
    return dict(json.loads(os.environ.get(FOLDERS, "{}")))


def _tell_children(address: RemoteAddress, folder: str) -> None:
    """Let children read this folder; the newest one if it is empty."""
    folders = _read_told() | {str(address): folder}
    os.environ[FOLDERS] = json.dumps({name: value for name, value in folders.items() if value})


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
