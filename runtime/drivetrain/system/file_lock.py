"""A lock on a file, which the kernel gives up with its process, however that ends."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable
from pathlib import Path

from drivetrain.errors import StorageError

RETRY_SECONDS = 0.1
"""Seconds between two attempts."""


def acquire(path: Path | str, timeout: float, open_file: Callable[..., int] = os.open) -> int | None:
    """Lock a file, which is made if it is missing.

    Args:
        timeout: seconds to wait for another process.
        open_file: opens it, as `os.open` does.

    Returns:
        The open file, which holds the lock until it is closed; None if another process still holds it.

    Raises:
        OSError: if the file cannot be opened, or is a symbolic link.
        StorageError: if its file system has no locks.
    """
    handle = open_file(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
    end = time.monotonic() + timeout
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return handle
        except (BlockingIOError, PermissionError):
            if time.monotonic() >= end:
                os.close(handle)
                return None
        except InterruptedError:
            pass
        except OSError as error:
            os.close(handle)
            raise StorageError(
                f"{path}: its file system refuses locks ({error.strerror}), which keep a second process out",
                "a local disk, NFS 4, or Lustre that is mounted with -o flock or -o localflock",
                "use a folder on another disk, or ask for that mount option",
            ) from None
        time.sleep(RETRY_SECONDS)


def is_held(path: Path | str, open_file: Callable[..., int] = os.open) -> bool:
    """Whether a process holds the lock of a file, in whatever container that shares it; not if there is no such file."""
    try:
        handle = open_file(path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(handle)
    return False
