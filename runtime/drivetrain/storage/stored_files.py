"""The files at an address: which there are, and how they come to this machine."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from urllib.parse import unquote

from drivetrain.errors import DataError
from drivetrain.storage.object_store import ObjectStore, StoredObject
from drivetrain.storage.remote_address import RemoteAddress
from drivetrain.storage.store_errors import RemoteError, Trouble

Wanted = Callable[[str], bool]
"""Which files of a folder are needed, by their names in it."""
AT_ONCE = 8
"""Files that are downloaded at the same time."""


def everything(name: str) -> bool:
    """True: all files of a folder are needed."""
    return True


def list_files(above: ObjectStore, address: RemoteAddress, selects: Wanted = everything) -> list[StoredObject]:
    """The file at an address, or all files of a folder.

    Args:
        above: opened at the parent of the address; names are relative to it.
        address: of a file, or of a folder of a bucket.
        selects: which files of a folder are needed, by their names in it.

    Raises:
        RemoteError: if the store does not say.
        DataError: if nothing is there.
    """
    if not address.path and not address.writable:
        raise DataError(f"{address} names no file", "the address of a file, as a web server lists none", "name a file")
    start = f"{address.name}/" if address.path else ""
    one = _find(above, address)
    files = [one] if one else [file for file in _without_markers(above.objects(start)) if file.name.startswith(start)]
    files = [file for file in files if selects(file.name.removeprefix(start))]
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


def _find(above: ObjectStore, address: RemoteAddress) -> StoredObject | None:
    """The file at an address; None if it can only be a folder."""
    if not address.path:
        return None
    try:
        # The client writes a web address with %20 and the like by itself.
        file = above.head(address.name if address.writable else unquote(address.name))
    except RemoteError as error:
        if error.trouble is not Trouble.MISSING or not address.writable:
            raise
        return None
    return file if file.bytes or not address.writable or not above.objects(f"{address.name}/") else None


def _without_markers(entries: Sequence[StoredObject]) -> list[StoredObject]:
    """Without the empty objects that stand for folders, as consoles and some tools write them."""
    folders = {
        "/".join(parts[:depth]) for parts in (entry.name.split("/") for entry in entries) for depth in range(len(parts))
    }
    return [entry for entry in entries if entry.bytes or entry.name not in folders]


def download(store: ObjectStore, files: Sequence[StoredObject], folder: Path) -> None:
    """Write files to the same names below a folder; those that are complete stay if it fails or is stopped.

    Raises:
        RemoteError: if the store does not give one.
        DataError: if one has another size than in the list.
        OSError: if one cannot be written.
    """
    over = threading.Event()

    def get(file: StoredObject) -> None:
        if store.get_file(file.name, folder / file.name, over) != file.bytes and not over.is_set():
            (folder / file.name).unlink()
            raise DataError(
                f"{store.address / file.name} changed while it was downloaded",
                "data that nobody writes to",
                "call the command again when it is complete",
            )

    with ThreadPoolExecutor(AT_ONCE) as pool:
        try:
            for done in as_completed([pool.submit(get, file) for file in files]):
                done.result()
        except BaseException:  # a stop, too, must not wait for large files
            over.set()
            pool.shutdown(cancel_futures=True)
            raise
