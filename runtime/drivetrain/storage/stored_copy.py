"""Copies files and folders of a store to this machine, where jobs read them.

ADDRESS-CONTENT/     named by digests of the address, and of the names, sizes and tags of its files
  copy.json          list of the files; written last
  files/NAME         the file or folder
ADDRESS.lock         held by the process that downloads

Changed content of an address is downloaded completely into another folder, so that runs can still read the earlier copy. A
folder that has not been used for a month is removed.
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
from drivetrain.system.download_progress import DownloadProgress
from drivetrain.system.files import blame_storage, make_folder, read_json, write_json
from drivetrain.system.units import format_bytes

Selector = Callable[[str], bool]
"""Function that decides by a file's path relative to its folder whether it is needed."""
PATIENCE, HASTE = Patience(retries=30.0), Patience(retries=5.0, silence=10.0, connect=5.0)
"""Time limits if there is no copy, and if there is a copy to use when the store does not answer."""
PARALLEL_DOWNLOADS = 8
UNUSED_SECONDS = 30 * 86_400.0
"""Age of the last use after which a copy is removed when its address has other content."""
FOLDERS = "DRIVETRAIN_COPIES"
"""Variable with the copy of each address that this process reads, so that its children read the same copies."""
_RECORD, _FILES = "copy.json", "files"


@dataclass(frozen=True)
class StoredCopy:
    """State of the local copy of an address."""

    address: RemoteAddress
    """Address of a file, or of a folder of a bucket."""
    path: Path
    """Path of the local file or folder, which has the same name as in the store."""
    bytes: int
    files: int
    fetched: str
    """Local time of the download."""
    downloaded: int = 0
    """Number of bytes that this call has downloaded."""
    note: str = ""
    """Reason why the store was not asked for changes; empty if it was asked."""


def find_cached(address: RemoteAddress, cache: Path) -> StoredCopy | None:
    """Find the copy of an address that the parent process reads, or else the newest, without asking the store.

    A folder can also be inside the copy of its parent folder.
    """
    inherited_folder = _read_told().get(str(address))
    candidates = [cache / inherited_folder] if inherited_folder else _list_folders(address, cache)
    for folder in candidates:
        copy = _read_copy(address, folder)
        if copy:
            return copy
    parent_copy = find_cached(address.parent, cache) if address.path else None
    return _select_subfolder(parent_copy, address) if parent_copy else None


def _list_folders(address: RemoteAddress, cache: Path) -> list[Path]:
    """List the complete copies of an address, the most recently used first."""
    records = sorted(cache.glob(f"{_digest(str(address))}-*/{_RECORD}"), key=lambda record: -record.stat().st_mtime)
    return [record.parent for record in records]


def _select_subfolder(parent_copy: StoredCopy, address: RemoteAddress) -> StoredCopy | None:
    """Return the folder of an address inside the copy of its parent folder; None if it does not exist there."""
    path = parent_copy.path / address.name
    if not path.is_dir():
        return None
    sizes = [file.stat().st_size for file in path.rglob("*") if file.is_file()]
    return replace(parent_copy, address=address, path=path, bytes=sum(sizes), files=len(sizes))


def fetch(address: RemoteAddress, cache: Path, say: Callable[[str], None], selects: Selector) -> StoredCopy:
    """Copy the current content of an address, unless the cache has it.

    Args:
        address: address of a file, or of a folder of a bucket.
        cache: folder of the copies.
        say: function that prints a line about a download.
        selects: function that decides whether a file of a folder is needed.

    Raises:
        RemoteError: if the content cannot be downloaded, and there is no copy.
        DataError: if the address does not exist, or its content changes during the download.
        StorageError: if the cache cannot be written.
    """
    _tell_children(address, "")
    cached = find_cached(address, cache)
    if cached and not _list_folders(address, cache):
        # The copy is inside the copy of its parent folder, which is updated as a whole.
        subfolder = _select_subfolder(fetch(address.parent, cache, say, selects), address)
        if subfolder:
            return subfolder
    try:
        files = _list_files(ObjectStore(address.parent, HASTE if cached else PATIENCE), address, selects)
    except RemoteError as error:
        # A copy replaces a store that does not answer, but not a store that refuses the request.
        if cached is None or error.trouble not in (Trouble.AWAY, Trouble.NO_CREDENTIALS):
            raise
        _tell_children(address, cached.path.relative_to(cache).parts[0])
        return replace(cached, note=f"{error.given}, so the copy of {cached.fetched} is used")
    # Without a tag a change cannot be noticed, so the file is downloaded every time.
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
    """List the file at an address, or the needed files of a folder, by names relative to the parent."""
    if not address.path and not address.writable:
        possible = "the address of a file, because a web server does not list files"
        raise DataError(f"{address} names no file", possible, "name a file")
    # obstore itself percent-encodes the address of a web server.
    name = address.name if address.writable else unquote(address.name)
    file = parent.find_head(name) if address.path else None
    files, prefix = [file] if file else [], f"{address.name}/" if address.path else ""
    if address.writable and not (file and file.bytes):  # tools store an empty object for a folder
        entries = parent.objects(prefix)
        folders = {entry.name[:end] for entry in entries for end, letter in enumerate(entry.name) if letter == "/"}
        in_folder = [entry for entry in entries if entry.name.startswith(prefix)]
        files = [entry for entry in in_folder if entry.bytes or entry.name not in folders] or files
    files = [file for file in files if selects(file.name.removeprefix(prefix))]
    if not files:
        raise DataError(f"{address} does not exist", "a file, or a folder with files", "correct the address")
    for file in files:
        if set(file.name.split("/")) & {"", ".", ".."} or "\0" in file.name:
            description = f"{address}: the name {file.name!r} is not possible for a local file"
            raise DataError(description, "names without empty components, `.` and `..`", "rename it in the store")
    return files


def _download(address: RemoteAddress, files: Sequence[StoredObject], folder: Path, say: Callable[[str], None]) -> int:
    """Download all files into a folder, replacing an incomplete download; returns their size in bytes."""
    size, free = sum(file.bytes for file in files), shutil.disk_usage(folder.parent).free
    if size > free:
        raise StorageError(
            f"{folder}: the download takes {format_bytes(size)}, and {format_bytes(free)} are free",
            f"{format_bytes(size)} of free space",
            "free some space there, or read the data in chunks with your own code (docs/data-sources.md)",
        )
    shutil.rmtree(folder, ignore_errors=True)
    description = f"{len(files):,} files" if len(files) > 1 else files[0].name
    say(f"{address.parent}: downloading {description}, {format_bytes(size)} to {folder}")
    store, progress = ObjectStore(address.parent, PATIENCE), DownloadProgress(str(address), size, say)
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
                f"{store.address / file.name} changed during the download",
                "data that no program is writing",
                "run the command again when the data is complete",
            )

    with ThreadPoolExecutor(PARALLEL_DOWNLOADS) as pool:
        try:
            for future in as_completed([pool.submit(download, file) for file in files]):
                future.result()
        except BaseException:  # includes a stop signal, which must not wait for large files
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
    """Read the copy in a folder, and record its use; None if a file is missing or has another size."""
    record = read_json(folder / _RECORD)
    if not isinstance(record, dict):
        return None
    for name, size in record["files"]:
        path = folder / _FILES / name
        if not path.is_file() or path.stat().st_size != size:
            return None
    with contextlib.suppress(OSError):  # the cache may be read-only for this user
        os.utime(folder / _RECORD)
    total = sum(size for _, size in record["files"])
    return StoredCopy(address, folder / _FILES / record["name"], total, len(record["files"]), str(record["fetched"]))


def _remove_unused(cache: Path, address: RemoteAddress, new_folder: Path) -> None:
    """Remove earlier copies of an address that have not been used for a month, and incomplete downloads."""
    for folder in cache.glob(f"{_digest(str(address))}-*"):
        record = folder / _RECORD
        is_unused = not record.exists() or time.time() - record.stat().st_mtime > UNUSED_SECONDS
        if folder != new_folder and is_unused:
            shutil.rmtree(folder, ignore_errors=True)


def _read_told() -> dict[str, str]:
    """Read the folders that this process and its parents read, by address."""
    return dict(json.loads(os.environ.get(FOLDERS, "{}")))


def _tell_children(address: RemoteAddress, folder: str) -> None:
    """Let child processes read this folder for an address, or the newest copy if it is empty."""
    folders = _read_told() | {str(address): folder}
    os.environ[FOLDERS] = json.dumps({name: value for name, value in folders.items() if value})


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
