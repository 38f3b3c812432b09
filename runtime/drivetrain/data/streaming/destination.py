"""Where shards are written: a folder of this machine or an address in an object store. A file is there whole or not at all."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from drivetrain.errors import SpecError
from drivetrain.storage.object_store import ObjectStore
from drivetrain.storage.remote_address import POSSIBLE, BadAddress, is_remote, parse
from drivetrain.system.files import blame_storage, make_folder, sync_file, sync_folder


@dataclass(frozen=True)
class LocalFolder:
    """A folder of this machine."""

    path: Path

    def sizes(self) -> dict[str, int]:
        """Bytes of each file."""
        return {file.name: file.stat().st_size for file in self.path.iterdir() if file.is_file()}

    def read(self, name: str) -> bytes | None:
        """The content of a file; None if it is not there."""
        path = self.path / name
        return path.read_bytes() if path.is_file() else None

    def put(self, name: str, file: Path) -> None:
        """Copy a file, and give it its name once it is whole; raises StorageError if it cannot be written."""
        new = self.path / f".{name}.writing"
        try:
            with blame_storage(self.path):
                shutil.copyfile(file, new)
                sync_file(new)
                os.replace(new, self.path / name)
                sync_folder(self.path)
        finally:
            new.unlink(missing_ok=True)


@dataclass(frozen=True)
class RemoteFolder:
    """An address in an object store."""

    store: ObjectStore

    def sizes(self) -> dict[str, int]:
        """Bytes of each object directly below the address."""
        return {entry.name: entry.bytes for entry in self.store.objects() if "/" not in entry.name}

    def read(self, name: str) -> bytes | None:
        """The content of an object; None if it is not there."""
        return self.store.find(name)

    def put(self, name: str, file: Path) -> None:
        """Upload a file; it is not visible before its last byte.

        Raises:
            RemoteError: if the store does not take it.
        """
        with file.open("rb") as opened:
            self.store.put_file(name, opened)


Destination = LocalFolder | RemoteFolder


def open_destination(text: str) -> Destination:
    """The place that a command line names.

    Raises:
        SpecError: if it is no place to write to.
        StorageError: if a folder cannot be made.
    """
    if not is_remote(text):
        folder = Path(os.path.expanduser(text))
        make_folder(folder)
        return LocalFolder(folder)
    try:
        address = parse(text)
    except BadAddress as error:
        raise SpecError(f"--to: {error.given}", error.possible, error.action) from None
    if not address.writable:
        raise SpecError(f"--to: {text} cannot be written to", f"a folder, or {POSSIBLE}", "name one of these")
    return RemoteFolder(ObjectStore(address))
