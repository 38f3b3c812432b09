"""A copy on this machine of a file or folder in a store. A job that is not streamed reads its remote paths there.

ADDRESS/            named by a digest of the address
  copy.json         which version is the present one, with its files
  VERSION/NAME      the file or folder; named by a digest of names, sizes and tags; complete, as it is renamed at the end
  VERSION.part/     what is being downloaded; a command that was killed is continued here
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from urllib.parse import unquote

from runtime.errors import Busy, DataError, StorageError
from runtime.storage.object_store import ObjectStore, Patience, StoredObject
from runtime.storage.remote_address import RemoteAddress
from runtime.storage.store_errors import RemoteError, Trouble
from runtime.system import file_lock
from runtime.system.files import make_folder, read_json, storage_error, sync_folder, write_json
from runtime.system.units import format_bytes

PATIENCE, HASTE = Patience(retries=30.0), Patience(retries=5.0, silence=10.0, connect=5.0)
"""Without a copy, and with one, which is used if the store stays away for so long."""
AT_ONCE = 8
"""Files that are downloaded at the same time."""
WAIT = 24 * 3600.0
"""Seconds to wait for another command that downloads the same."""
VERSIONS = "DRIVETRAIN_COPIES"
"""The variable in which a process tells its children which versions it has read: they read the same."""
PASSING = (Trouble.AWAY, Trouble.NO_CREDENTIALS)
"""Troubles that a copy makes up for; a store that refuses does not."""
Wanted = Callable[[str], bool]
_RECORD, _OWN, _LOCK, _PART, _GONE = "copy.json", ".copy.json", ".lock", ".part", ".gone"
_held: dict[Path, int] = {}
"""Versions that this process has locked, until it ends."""


@dataclass(frozen=True)
class StoredCopy:
    """What this machine has of an address.

    Args:
        address: of a file, or of a folder of a bucket.
        path: of the copy, with the name that it has in the store.
        version: of its content.
        bytes: of all files.
        files: how many there are.
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


def everything(name: str) -> bool:
    """True: all files of a folder are needed."""
    return True


def cached(address: RemoteAddress, cache: Path) -> StoredCopy | None:
    """The newest copy in a cache, or the one that the parent of this process reads; None if there is none, or a file of it
    is gone. The store is not asked.

    Args:
        address: of a file or folder; that of a part of a folder whose copy is there will do.
        cache: the folder of all copies.
    """
    whole, below = _covering(address, cache)
    found = _own(whole, cache)
    if found is None or not below:
        return found
    path = found.path / below
    return replace(found, address=address, path=path) if path.exists() else None


def fetch(address: RemoteAddress, cache: Path, say: Callable[[str], None], wanted: Wanted = everything) -> StoredCopy:
    """The present content of an address; what is in the cache already is not downloaded again.

    Args:
        address: of a file, or of a folder of a bucket.
        cache: the folder of all copies.
        say: takes a line before a download.
        wanted: which files of a folder are needed, by their names.

    Raises:
        RemoteError: if the store does not give it, and there is no copy.
        DataError: if nothing is there, or it changes while it is downloaded.
        StorageError: if the cache cannot be written.
        Busy: if another command downloads it for a day.
    """
    whole, below = _covering(address, cache)
    if below:
        fetch(whole, cache, say, wanted)
        if found := cached(address, cache):
            return found
        raise DataError(f"{address}: nothing is there", "a file, or a folder with files", "correct the address")
    told = json.loads(os.environ.get(VERSIONS, "{}"))
    os.environ[VERSIONS] = json.dumps({name: version for name, version in told.items() if name != str(address)})
    before = _own(address, cache, hold=False)
    try:
        files = listed(ObjectStore(address.parent, HASTE if before else PATIENCE), address, wanted)
    except RemoteError as error:
        if before is None or error.trouble not in PASSING:
            raise
        _hold(before.path.parent if address.path else before.path)
        found = replace(before, note=f"{error.given}, so the copy of {before.fetched} is used")
    else:
        found = _brought(address, cache, files, say)
    os.environ[VERSIONS] = json.dumps(json.loads(os.environ[VERSIONS]) | {str(address): found.version})
    return found


def _own(address: RemoteAddress, cache: Path, *, hold: bool = True) -> StoredCopy | None:
    """The copy of an address itself, which nobody removes while this process lives if it holds it."""
    place = _place(address, cache)
    version = json.loads(os.environ.get(VERSIONS, "{}")).get(str(address))
    record = read_json(place / _RECORD)
    if version:
        record = read_json(place / str(version) / _OWN) or record
    if not isinstance(record, dict):
        return None
    folder, files = place / str(record["version"]), _files(record)
    if hold:
        _hold(folder)
    if any(_bytes(folder / each.name) != each.bytes for each in files):
        return None
    size = sum(each.bytes for each in files)
    return StoredCopy(
        address, folder / record["name"], str(record["version"]), size, len(files), str(record["fetched"])
    )


def _brought(
    address: RemoteAddress, cache: Path, files: Sequence[StoredObject], say: Callable[[str], None]
) -> StoredCopy:
    """The copy of these files; what is missing is downloaded."""
    place, version, size = _place(address, cache), _version(files), 0
    single = len(files) == 1 and "/" not in files[0].name and bool(address.path)
    record = {
        "address": str(address),
        "version": version,
        "name": files[0].name if single else address.name if address.path else ".",
        "files": [asdict(each) for each in files],
    }
    try:
        with _locked(place, say):
            if any(_bytes(place / version / each.name) != each.bytes for each in files):
                size = _update(ObjectStore(address.parent, PATIENCE), files, place, version, say)
            present = read_json(place / _RECORD)
            if size or not isinstance(present, dict) or present.get("version") != version:
                record["fetched"] = time.strftime("%Y-%m-%d %H:%M:%S")
                write_json(place / version / _OWN, record)
                write_json(place / _RECORD, record)
            found = _own(address, cache)
            _remove_others(place, version)
    except OSError as error:
        raise storage_error(place, error) from None
    assert found is not None
    return replace(found, downloaded=size)


def listed(above: ObjectStore, address: RemoteAddress, wanted: Wanted = everything) -> list[StoredObject]:
    """The file at an address, or all files of a folder.

    Args:
        above: opened at the parent of the address; names are relative to it.
        address: of a file, or of a folder of a bucket.
        wanted: which files of a folder are needed, by their names in it.

    Raises:
        RemoteError: if the store does not say.
        DataError: if nothing is there.
    """
    if not address.path and not address.writable:
        raise DataError(f"{address} names no file", "the address of a file, as a web server lists none", "name a file")
    start = f"{address.name}/" if address.path else ""
    one = _find(above, address)
    found = [one] if one else [each for each in _without_markers(above.objects(start)) if each.name.startswith(start)]
    found = [each for each in found if wanted(each.name.removeprefix(start))]
    if not found:
        raise DataError(f"{address}: nothing is there", "a file, or a folder with files", "correct the address")
    for each in found:
        if set(each.name.split("/")) & {"", ".", ".."} or "\0" in each.name:
            raise DataError(
                f"{address}: the name {each.name!r} cannot be that of a file here",
                "names without empty parts and dots",
                "rename it there",
            )
    return found


def _find(above: ObjectStore, address: RemoteAddress) -> StoredObject | None:
    """The file at an address; None if it can only be a folder."""
    if not address.path:
        return None
    try:
        # The client writes a web address with %20 and the like by itself.
        found = above.head(address.name if address.writable else unquote(address.name))
    except RemoteError as error:
        if error.trouble is not Trouble.MISSING or not address.writable:
            raise
        return None
    return found if found.bytes or not address.writable or not above.objects(f"{address.name}/") else None


def _without_markers(found: Sequence[StoredObject]) -> list[StoredObject]:
    """Without the empty objects that stand for folders, as consoles and some tools write them."""
    folders = {
        "/".join(parts[:depth]) for parts in (each.name.split("/") for each in found) for depth in range(len(parts))
    }
    return [each for each in found if each.bytes or each.name not in folders]


def _update(
    store: ObjectStore, files: Sequence[StoredObject], place: Path, version: str, say: Callable[[str], None]
) -> int:
    """Bring a version to this machine; returns the bytes that were downloaded."""
    part = place / f"{version}{_PART}"
    part.mkdir(exist_ok=True)
    _take_over(files, place, part)
    missing = [each for each in files if _bytes(part / each.name) != each.bytes]
    size = sum(each.bytes for each in missing)
    _check_space(place, size)
    if missing:
        what = f"{len(missing):,} files, " if len(missing) > 1 else f"{missing[0].name}, "
        say(f"{store.address}: downloading {what}{format_bytes(size)} to {place}")
    _download(store, missing, part)
    if (place / version) in _held:
        os.close(_held.pop(place / version))
    shutil.rmtree(place / version, ignore_errors=True)  # damaged, or it would have been found
    part.replace(place / version)
    sync_folder(place)
    return size


def _take_over(files: Sequence[StoredObject], place: Path, part: Path) -> None:
    """Link what an earlier version has of files that are the same."""
    record = read_json(place / _RECORD)
    if not isinstance(record, dict):
        return
    before = set(_files(record))
    for each in files:
        old, new = place / str(record["version"]) / each.name, part / each.name
        if each.tag and each in before and _bytes(old) == each.bytes and not new.exists():
            new.parent.mkdir(parents=True, exist_ok=True)
            os.link(old, new)


def _download(store: ObjectStore, files: Sequence[StoredObject], folder: Path) -> None:
    over = threading.Event()

    def get(each: StoredObject) -> None:
        if store.get_file(each.name, folder / each.name, over) != each.bytes and not over.is_set():
            (folder / each.name).unlink()
            raise DataError(
                f"{store.address / each.name} changed while it was downloaded",
                "data that nobody writes to",
                "call the command again when it is complete",
            )

    with ThreadPoolExecutor(AT_ONCE) as pool:
        try:
            for done in as_completed([pool.submit(get, each) for each in files]):
                done.result()
        except BaseException:  # a stop, too, must not wait for large files
            over.set()
            pool.shutdown(cancel_futures=True)
            raise


def _check_space(place: Path, size: int) -> None:
    free = shutil.disk_usage(place).free
    if size > free:
        raise StorageError(
            f"{place}: the download takes {format_bytes(size)}, and {format_bytes(free)} are free",
            f"{format_bytes(size)} of free space, or `stream: true`, which needs a part of it at a time",
            "free some space there, or stream the data (docs/your-data.md)",
        )


def _hold(version: Path) -> None:
    """Lock a version until this process ends: nobody removes it."""
    if version in _held:
        return
    with contextlib.suppress(OSError):  # it is gone, or the file system has no locks
        handle = os.open(version, os.O_RDONLY)
        fcntl.flock(handle, fcntl.LOCK_SH)
        _held[version] = handle


def _remove_others(place: Path, version: str) -> None:
    """Remove versions that no process reads, and what was left of downloads that nobody will continue."""
    for folder in place.iterdir():
        if not folder.is_dir() or folder.name == version:
            continue
        handle = os.open(folder, os.O_RDONLY)
        try:
            if folder not in _held:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                gone = folder.with_suffix(_GONE)
                folder.replace(gone)
                shutil.rmtree(gone, ignore_errors=True)
        except OSError:
            continue
        finally:
            os.close(handle)


@contextmanager
def _locked(place: Path, say: Callable[[str], None]) -> Iterator[None]:
    make_folder(place)
    handle = file_lock.acquire(place / _LOCK, 0.0)
    if handle is None:
        say(f"{place}: another command downloads the same; waiting for it")
        handle = file_lock.acquire(place / _LOCK, WAIT)
    if handle is None:
        raise Busy(f"{place}: another command downloads the same", "one at a time", "wait for it, or stop it")
    try:
        yield
    finally:
        os.close(handle)


def _covering(address: RemoteAddress, cache: Path) -> tuple[RemoteAddress, str]:
    """The address whose copy has an address, and the path in it: its own, or that of a folder above it."""
    whole, below = address, ""
    while address.writable:
        record = read_json(_place(whole, cache) / _RECORD)
        if isinstance(record, dict) and (not below or _has(record, below)):
            return whole, below
        if not whole.path:
            break
        below = f"{whole.name}/{below}".rstrip("/")
        whole = whole.parent
    return address, ""


def _has(record: Mapping[str, object], below: str) -> bool:
    """Whether a copy of a folder has a file or folder."""
    start = "" if record["name"] == "." else f"{record['name']}/"
    names = [each.name.removeprefix(start) for each in _files(record)]
    return any(name == below or name.startswith(f"{below}/") for name in names)


def _place(address: RemoteAddress, cache: Path) -> Path:
    return cache / hashlib.sha256(str(address).encode()).hexdigest()[:16]


def _version(files: Sequence[StoredObject]) -> str:
    """The same as long as nothing changes; a new one each time if the store does not say whether it does."""
    unknown = [time.time_ns()] if any(not each.tag for each in files) else []
    return hashlib.sha256(json.dumps([[asdict(each) for each in files], unknown]).encode()).hexdigest()[:16]


def _files(record: Mapping[str, object]) -> list[StoredObject]:
    rows = record["files"]
    assert isinstance(rows, list)
    return [StoredObject(**row) for row in rows]


def _bytes(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return -1
