"""A bounded cache on disk that all processes of a machine share: what is in use stays, what was used long ago goes first.

    <name><suffix>   an entry; locked (shared) while it is in use, touched with each use
    <name>.part      the claim of the process that makes one: locked by it, as large as the space that it reserves
    <name>.new       what is being written; <name>.whole: the packed file that it is unpacked from
    lock             held for a moment to reserve space

No process waits for space while it holds the lock, so a full cache never deadlocks. A file that a killed process left is
recognized by its lock, which nobody holds.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from drivetrain.system import file_lock
from drivetrain.system.files import blame_storage, make_folder, sync_file

CLAIM, NEW, WHOLE = ".part", ".new", ".whole"
"""Endings of files beside the entries, see above."""
Ranks = Callable[[Collection[str]], Mapping[str, tuple[int, ...]]]
"""Ranks the names of entries that may be removed, the first one lowest; of one rank the least recently used goes first."""


def rank_all_equal(names: Collection[str]) -> Mapping[str, tuple[int, ...]]:
    """Any entry may be removed."""
    return dict.fromkeys(names, (0,))


@dataclass(frozen=True)
class DiskCache:
    """The cache in a folder.

    Args:
        limit: bytes that all entries together may take, including those that are being written.
    """

    folder: Path
    limit: int
    suffix: ClassVar[str]

    def path(self, name: str) -> Path:
        """The path of an entry that is ready to be used."""
        return self.folder / f"{name}{self.suffix}"

    def has(self, name: str) -> bool:
        """Whether an entry is there; it may be removed at any moment."""
        return self.path(name).exists()

    def drop(self, name: str) -> None:
        """Remove an entry that is damaged.

        Raises:
            StorageError: if that fails.
        """
        with blame_storage(self.folder):
            self.path(name).unlink(missing_ok=True)

    @contextlib.contextmanager
    def reading(self, name: str) -> Iterator[int | None]:
        """Yield an open file of an entry, which is not removed during the block; None if the entry is not there."""
        try:
            handle = os.open(self.path(name), os.O_RDONLY)
        except OSError:
            yield None
            return
        try:
            file_lock.lock(handle, shared=True)
            if file_lock.is_at(handle, self.path(name)):
                with contextlib.suppress(PermissionError):  # the file of another user
                    os.utime(handle)
                yield handle
            else:
                yield None
        finally:
            file_lock.unlock(handle)

    def write(self, name: str, size: int, write_file: Callable[[Path], None], ranks: Ranks = rank_all_equal) -> bool:
        """Put an entry into the cache, unless it is there; one process of the machine writes it, the others wait.

        Args:
            size: most bytes that the entry and its packed file take.
            ranks: which entries may be removed for it.

        Returns:
            Whether the entry is in the cache; False if there is no space now.

        Raises:
            StorageError: if it cannot be written.
        """
        make_folder(self.folder)
        with self._hold_claim(name) as claim:
            if claim is None:
                return True
            with self.locked():
                if not self.make_room(name, size, ranks):
                    return False
                # The size of the claim is the reservation: `make_room` of other processes counts it.
                os.truncate(claim, size)
            new = self.folder / f"{name}{NEW}"
            try:
                with blame_storage(self.folder):
                    write_file(new)
                    sync_file(new)  # else a power loss could leave the name without the content
                    with self.locked():  # else a process that adds up the sizes could see neither claim nor entry
                        os.replace(new, self.path(name))
                        self._claim(name).unlink()
            finally:
                new.unlink(missing_ok=True)
        return True

    def make_room(self, name: str, size: int, ranks: Ranks = rank_all_equal) -> bool:
        """Remove entries that no process uses until an entry of `size` bytes has space; returns whether it has."""
        used_bytes = 0
        removable: dict[str, os.stat_result] = {}
        with os.scandir(self.folder) as files:
            for file in files:
                if file.name in (f"{name}{self.suffix}", f"{name}{CLAIM}"):
                    continue
                with contextlib.suppress(FileNotFoundError):
                    if file.name.endswith(self.suffix):
                        removable[file.name.removesuffix(self.suffix)] = file.stat()
                    elif file.name.endswith(CLAIM) and not _remove_abandoned(Path(file.path)):
                        used_bytes += file.stat().st_size
        excess = used_bytes + sum(status.st_size for status in removable.values()) + size - self.limit
        if excess <= 0:
            return True
        rank_by_name = ranks(removable)
        for other in sorted(rank_by_name, key=lambda other: (rank_by_name[other], removable[other].st_mtime_ns)):
            with file_lock.try_lock(self.path(other)) as handle, contextlib.suppress(OSError):
                if handle is not None:
                    self.path(other).unlink()
                    excess -= removable[other].st_size
            if excess <= 0:
                return True
        return False

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock of the whole cache during the block."""
        handle = self._open_locked(self.folder / "lock")
        try:
            yield
        finally:
            file_lock.unlock(handle)

    def _claim(self, name: str) -> Path:
        return self.folder / f"{name}{CLAIM}"

    @contextlib.contextmanager
    def _hold_claim(self, name: str) -> Iterator[int | None]:
        """Yield the locked claim on making an entry; None if another process has made it."""
        claim = self._claim(name)
        while not self.has(name):
            handle = self._open_locked(claim)
            try:
                if not self.has(name):
                    yield handle
                    return
            finally:
                if file_lock.is_at(handle, claim):
                    claim.unlink(missing_ok=True)
                file_lock.unlock(handle)
        yield None

    def _open_locked(self, path: Path) -> int:
        with blame_storage(self.folder):
            return file_lock.open_locked(path)


def _remove_abandoned(claim: Path) -> bool:
    """Remove a claim and its files if the process that made it is gone; returns whether it is."""
    with file_lock.try_lock(claim) as handle, contextlib.suppress(PermissionError):  # those of another user
        if handle is not None:
            for suffix in (NEW, WHOLE, CLAIM):
                claim.with_suffix(suffix).unlink(missing_ok=True)
            return True
    return False
