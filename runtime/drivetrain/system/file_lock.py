"""Locks on files and folders, which the kernel gives up with their process, however that ends.

A lock belongs to an open file, not to its name. A file may lose its name while a process waits for its lock, and a new file
of this name has another lock: so who has waited checks `is_at`, and who removes a file that others lock has its lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from drivetrain.errors import StorageError

RETRY_SECONDS = 0.1
"""Seconds between two attempts."""


def lock(handle: int, *, shared: bool = False, wait: bool = True) -> bool:
    """Lock an open file or folder; returns whether it is locked. Raises OSError if its file system has no locks."""
    operation = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    try:
        fcntl.flock(handle, operation if wait else operation | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        if wait:
            raise
        return False
    return True


def unlock(handle: int) -> None:
    """Unlock and close a file. Closing alone would not unlock it if a worker process that was forked meanwhile has it open."""
    with contextlib.suppress(OSError):  # a file system without locks
        fcntl.flock(handle, fcntl.LOCK_UN)
    os.close(handle)


def is_at(handle: int, path: Path | str) -> bool:
    """Return whether a path leads to an open file; not if it was removed or replaced meanwhile."""
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path))
    except OSError:
        return False


def open_locked(path: Path, *, shared: bool = False) -> int:
    """Open a file, which is made if it is missing, wait for its lock, and return it.

    Raises:
        OSError: if it cannot be opened or locked.
    """
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            lock(handle, shared=shared)
            if is_at(handle, path):
                return handle
        except OSError:
            os.close(handle)
            raise
        unlock(handle)


@contextlib.contextmanager
def try_lock(path: Path) -> Iterator[int | None]:
    """Yield an open file or folder, locked during the block; None if a process has its lock, or it is gone."""
    try:
        handle = _open_existing(path)
    except OSError:
        yield None
        return
    try:
        yield handle if _try_lock(handle) and is_at(handle, path) else None
    finally:
        unlock(handle)


def acquire(
    path: Path | str,
    timeout: float,
    open_file: Callable[..., int] = os.open,
    report_wait: Callable[[], None] = lambda: None,
) -> int | None:
    """Lock a file, which is made if it is missing.

    Args:
        timeout: seconds to wait for another process.
        open_file: opens it, as `os.open` does.
        report_wait: called once if there is another process to wait for.

    Returns:
        The open file, which holds the lock until it is closed; None if another process still holds it.

    Raises:
        OSError: if the file cannot be opened, or is a symbolic link.
        StorageError: if its file system has no locks.
    """
    handle = open_file(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
    end, has_reported = time.monotonic() + timeout, False
    while not _lock_or_refuse(handle, path):
        if time.monotonic() >= end:
            os.close(handle)
            return None
        if not has_reported:
            report_wait()
            has_reported = True
        time.sleep(RETRY_SECONDS)
    return handle


def is_locked(path: Path | str, open_file: Callable[..., int] = os.open) -> bool:
    """Return whether a process holds the lock of a file, in any container that shares it; False without a file."""
    try:
        handle = open_file(path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        return not _try_lock(handle, shared=True)
    finally:
        os.close(handle)


def _lock_or_refuse(handle: int, path: Path | str) -> bool:
    try:
        return lock(handle, wait=False)
    except OSError as error:
        os.close(handle)
        raise StorageError(
            f"{path}: its file system refuses locks ({error.strerror}), which keep a second process out",
            "a local disk, NFS 4, or Lustre that is mounted with -o flock or -o localflock",
            "use a folder on another disk, or ask for that mount option",
        ) from None


def _open_existing(path: Path) -> int:
    """Open a file for writing where that is possible, since NFS gives no exclusive lock on one that is only read."""
    try:
        return os.open(path, os.O_RDWR)
    except (IsADirectoryError, PermissionError):
        return os.open(path, os.O_RDONLY)


def _try_lock(handle: int, *, shared: bool = False) -> bool:
    try:
        return lock(handle, shared=shared, wait=False)
    except OSError:
        return False
