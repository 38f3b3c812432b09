"""Lists the files at a remote address, and downloads them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor, as_completed
from pathlib import Path
from urllib.parse import unquote

from drivetrain.errors import DataError
from drivetrain.storage.object_store import ObjectStore, StoredObject
from drivetrain.storage.remote_address import RemoteAddress
from drivetrain.system.download_progress import Progress

Selector = Callable[[str], bool]
"""Whether a file of a folder is needed, by its path relative to the folder."""
PARALLEL_DOWNLOADS = 8


def list_files(parent: ObjectStore, address: RemoteAddress, selects: Selector) -> list[StoredObject]:
    """List the file at an address, or all files of a folder.

    Args:
        parent: the store, opened at the parent of the address; the names of the result are relative to it.
        address: of a file, or of a folder of a bucket.
        selects: whether a file of a folder is needed.

    Raises:
        RemoteError: if the store cannot be read.
        DataError: if there is no such file, or its name cannot be that of a local file.
    """
    if not address.path and not address.writable:
        raise DataError(f"{address} names no file", "the address of a file, as a web server lists none", "name a file")
    prefix = f"{address.name}/" if address.path else ""
    single_file = _find_file(parent, address)
    files = [single_file] if single_file else _list_folder(parent, prefix)
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


def _find_file(parent: ObjectStore, address: RemoteAddress) -> StoredObject | None:
    """Find the file at an address; None if it can only be a folder."""
    if not address.path:
        return None
    if not address.writable:  # a web server; the client itself percent-encodes the address
        return parent.head(unquote(address.name))
    file = parent.find_head(address.name)
    represents_folder = file is not None and not file.bytes and parent.objects(f"{address.name}/")
    return None if represents_folder else file


def _list_folder(parent: ObjectStore, prefix: str) -> list[StoredObject]:
    """The files below a prefix, without the empty objects by which web consoles and some tools represent folders."""
    entries = parent.objects(prefix)
    split_names = [entry.name.split("/") for entry in entries]
    folders = {"/".join(parts[:depth]) for parts in split_names for depth in range(len(parts))}
    return [entry for entry in entries if entry.name.startswith(prefix) and (entry.bytes or entry.name not in folders)]


def download(store: ObjectStore, files: Sequence[StoredObject], folder: Path, progress: Progress) -> None:
    """Download files to the same names below a folder; the first failure ends all downloads.

    Raises:
        RemoteError: if the store cannot be read.
        DataError: if a file has another size than in the list.
        OSError: if a file cannot be written.
    """
    is_stopped = threading.Event()

    def count(size: int) -> None:
        if is_stopped.is_set():
            raise CancelledError
        progress.add(size)

    def download_file(file: StoredObject) -> None:
        store.get_file(file.name, folder / file.name, count)
        if (folder / file.name).stat().st_size != file.bytes:
            raise DataError(
                f"{store.address / file.name} changed while it was downloaded",
                "data that nobody writes to",
                "call the command again when it is complete",
            )

    with ThreadPoolExecutor(PARALLEL_DOWNLOADS) as pool:
        try:
            for future in as_completed([pool.submit(download_file, file) for file in files]):
                future.result()
        except BaseException:  # also a stop signal: it must not wait for large files
            is_stopped.set()
            pool.shutdown(cancel_futures=True)
            raise
