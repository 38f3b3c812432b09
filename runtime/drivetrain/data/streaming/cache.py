"""A bounded cache of shards on disk, shared by all runs and processes of a machine.

    <name>.rows      a shard that can be read; locked (shared) while it is read, touched with each use
    <name>.part      the claim of the process that makes one: locked by it, as large as the space that it reserves
    <name>.new       what is being written; <name>.whole: the packed shard that it is unpacked from
    <id>.lease       the shards that a run needs soon, in the order of need; locked while the run lives
    lock             held for a moment to reserve space

No process waits for space while others wait for it, so a full cache never deadlocks. Shards that are in no lease are
removed first, least recently used first. A file that a killed process left is recognized by its lock, which nobody holds.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from drivetrain.data.streaming import lease
from drivetrain.data.streaming.fetch_counts import FetchCounts
from drivetrain.errors import StorageError
from drivetrain.system.files import make_folder, storage_error, sync_file
from drivetrain.system.units import format_bytes

POLL_SECONDS = 0.05
"""Seconds between two checks whether there is space."""
MAX_WAIT_SECONDS = 300.0
"""Seconds after which a cache that stays full, because all its shards are being read, is an error."""
READY, CLAIM, NEW, WHOLE = ".rows", ".part", ".new", ".whole"
"""Endings of the files, see above."""


@dataclass(frozen=True)
class ShardCache:
    """The cache in a folder.

    Args:
        folder: holds all shards.
        limit: bytes that all shards together may take, including those that are being written.
    """

    folder: Path
    limit: int
    counts: FetchCounts = field(default_factory=FetchCounts, compare=False, repr=False)
    """Counts of what this process fetches into the cache."""

    def path(self, name: str) -> Path:
        """The path of a shard that is ready to be read."""
        return self.folder / f"{name}{READY}"

    def _claim(self, name: str) -> Path:
        return self.folder / f"{name}{CLAIM}"

    def has(self, name: str) -> bool:
        """Whether a shard is there; it may be removed at any moment."""
        return self.path(name).exists()

    def drop(self, name: str) -> None:
        """Remove a shard that is damaged."""
        try:
            self.path(name).unlink(missing_ok=True)
        except OSError as error:
            raise storage_error(self.folder, error) from None

    @contextlib.contextmanager
    def reading(self, name: str) -> Iterator[int | None]:
        """Yield an open file of a shard, which is not removed during the block; None if the shard is not there."""
        try:
            handle = os.open(self.path(name), os.O_RDONLY)
        except OSError:
            yield None
            return
        try:
            fcntl.flock(handle, fcntl.LOCK_SH)
            if os.fstat(handle).st_nlink:
                with contextlib.suppress(PermissionError):  # the file of another user
                    os.utime(handle)
                yield handle
            else:  # removed a moment ago
                yield None
        finally:
            lease.unlock(handle)

    def make(
        self, name: str, size: int, write: Callable[[Path], None], rank: int = 0, keep: Collection[str] | None = None
    ) -> bool:
        """Put a shard into the cache, unless it is there; one process of the machine writes it, the others wait.

        Args:
            name: name of the shard.
            size: most bytes that the shard and its packed file take.
            write: writes the shard to a path.
            rank: how soon it is needed, 0 is at once: shards that are needed later may be removed for it. A batch reads
                its shards in this order.
            keep: names of shards that must stay; the method then returns False if there is no space. None to wait.

        Returns:
            Whether the shard is in the cache.

        Raises:
            StorageError: if it cannot be written.
        """
        self._check(name, size)
        start = time.monotonic()
        with self._hold_claim(name) as claim:
            while claim is not None and not self._reserve(name, claim, size, rank, keep):
                if keep is not None:
                    return False
                if time.monotonic() - start > MAX_WAIT_SECONDS:
                    raise self._full()
                time.sleep(POLL_SECONDS)
            if claim is not None:
                new = self.folder / f"{name}{NEW}"
                try:
                    write(new)
                    sync_file(new)  # else a power loss could leave the name without the content
                    with self.locked():  # else a process that adds up the sizes could see neither claim nor shard
                        os.replace(new, self.path(name))
                        self._claim(name).unlink()
                except OSError as error:
                    raise storage_error(self.folder, error) from None
                finally:
                    new.unlink(missing_ok=True)
        return True

    @contextlib.contextmanager
    def _hold_claim(self, name: str) -> Iterator[int | None]:
        """Yield the locked claim on making a shard; None if another process has made the shard."""
        claim = self._claim(name)
        while True:
            if self.has(name):
                yield None
                return
            handle = self._open(claim)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX)
                if not os.fstat(handle).st_nlink:  # its owner is done, and a new claim is another file
                    continue
                if self.has(name):
                    claim.unlink(missing_ok=True)
                    continue
                try:
                    yield handle
                finally:
                    if os.fstat(handle).st_nlink:
                        claim.unlink(missing_ok=True)
                return
            finally:
                lease.unlock(handle)

    def _reserve(self, name: str, claim: int, size: int, rank: int, keep: Collection[str] | None) -> bool:
        """Reserve space for a shard; returns whether there is space now."""
        with self.locked():
            used_sizes = self._sizes(f"{name}{CLAIM}")
            needed = sum(used_sizes.values()) + size - self.limit
            if needed > 0:
                needed -= self._remove(needed, rank, keep)
            if needed > 0:
                return False
            # The size of the claim is the reservation: `_sizes` of other processes counts it.
            os.truncate(claim, size)
        return True

    def _remove(self, needed: int, rank: int, keep: Collection[str] | None) -> int:
        """Remove shards that nobody needs, or that are needed later; returns how many bytes that made free."""
        soon, ending = lease.read_needed(self.folder)
        removable: list[tuple[int, float, Path]] = []
        for path in self.folder.glob(f"*{READY}"):
            name = path.name.removesuffix(READY)
            with contextlib.suppress(FileNotFoundError):
                if name not in soon:
                    removable.append((0, path.stat().st_mtime, path))
                elif soon[name] > rank and name not in (keep or ()):  # the one that is needed last is removed first
                    removable.append((2, -soon[name], path))
                elif keep is None and soon[name] < rank:  # the batch has read it already; later ones may need it
                    removable.append((1 if name in ending else 3, -soon[name], path))
        free = 0
        for _, _, path in sorted(removable):
            if free >= needed:
                break
            free += _remove(path)
        return free

    def _sizes(self, own_claim: str) -> dict[str, int]:
        """Bytes of all shards and claims except one; what killed processes left is removed."""
        sizes = {}
        with os.scandir(self.folder) as files:
            for file in files:
                with contextlib.suppress(FileNotFoundError):
                    if file.name.endswith(READY) or (
                        file.name.endswith(CLAIM) and file.name != own_claim and not _remove_abandoned(Path(file.path))
                    ):
                        sizes[file.name] = file.stat().st_size
        return sizes

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock of the whole cache during the block."""
        handle = self._open(self.folder / "lock")
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            lease.unlock(handle)

    def _open(self, path: Path) -> int:
        try:
            return os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise storage_error(self.folder, error) from None

    def _check(self, name: str, size: int) -> None:
        """Make the folder; refuse a shard that is larger than the cache."""
        make_folder(self.folder)
        if size > self.limit:
            raise StorageError(
                f"data.stream.cache is {format_bytes(self.limit)}, and one shard takes {format_bytes(size)}",
                f"{format_bytes(size)} or more",
                "raise data.stream.cache, or write smaller shards",
            )

    def _full(self) -> StorageError:
        return StorageError(
            f"the cache of shards {self.folder} was full for {MAX_WAIT_SECONDS:.0f} s: other runs read all of its "
            f"{format_bytes(self.limit)}",
            "space for the shards of all runs of this machine",
            "raise data.stream.cache, or train one after another",
        )


def _remove(path: Path) -> int:
    """Remove a shard unless it is being read; returns its bytes."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:
        return 0
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink()
        return os.fstat(handle).st_size
    except OSError:
        return 0
    finally:
        lease.unlock(handle)


def _remove_abandoned(claim: Path) -> bool:
    """Remove a claim and its files if the process that made it is gone; returns whether it is."""
    handle = os.open(claim, os.O_RDWR)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(handle).st_nlink:  # else its owner has ended properly, and the name may belong to a new claim
            for suffix in (NEW, WHOLE, CLAIM):
                claim.with_suffix(suffix).unlink(missing_ok=True)
        return True
    except OSError:
        return False
    finally:
        lease.unlock(handle)
