"""Leases: a file for each process that reads from the cache says which shards it needs soon; it is locked while it lives."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from drivetrain.system.files import storage_error

SUFFIX = ".lease"
POLL_SECONDS = 0.0005
"""Seconds between two attempts to read a lease that is being written."""
MAX_WRITE_SECONDS = 0.5
"""Seconds after which the writer of an incomplete lease counts as killed."""


class Lease:
    """The lease of one reader. Worker processes read in it why a shard could not be fetched."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / f"{uuid.uuid4().hex}{SUFFIX}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self.handle = _lock(self.path)
            while not os.fstat(self.handle).st_nlink:  # another process removed it as a dead one before it was locked
                unlock(self.handle)
                self.handle = _lock(self.path)
        except OSError as error:
            raise storage_error(folder, error) from None
        self.write(())

    def write(
        self, names: Sequence[str], ending: Sequence[str] = (), errors: Mapping[str, Sequence[str]] | None = None
    ) -> None:
        """Replace the content of the lease.

        Args:
            names: names of needed shards, in the order of need.
            ending: names of those that no batch after the present one needs.
            errors: by shard name, class and parts of the error for which it could not be fetched.

        Raises:
            StorageError: if it cannot be written.
        """
        text = json.dumps({"names": list(names), "ending": list(ending), "errors": dict(errors or {})}).encode()
        # Written in place, since a new file would have no lock. A reader that finds it incomplete reads it again.
        try:
            os.truncate(self.handle, 0)
            os.pwrite(self.handle, text, 0)
        except OSError as error:
            raise storage_error(self.path.parent, error) from None

    def error(self, name: str) -> list[str]:
        """Class name and parts of the error for which a shard could not be fetched; empty if there is none."""
        return [str(part) for part in _read(self.path).get("errors", {}).get(name, ())]

    def end(self) -> None:
        """Remove the lease."""
        self.path.unlink(missing_ok=True)
        unlock(self.handle)


def read_needed(folder: Path) -> tuple[dict[str, int], set[str]]:
    """How soon each shard is needed, by name (0 is at once), and the names of those that only present batches need.

    Leases of processes that are gone are removed.
    """
    soon: dict[str, int] = {}
    needed_later: set[str] = set()
    for path in folder.glob(f"*{SUFFIX}"):
        if _is_dead(path):
            continue
        lease = _read(path)
        names = lease.get("names", [])
        for position, name in enumerate(names):
            soon[name] = min(position, soon.get(name, position))
        needed_later |= set(names) - set(lease.get("ending", ()))
    return soon, soon.keys() - needed_later


def count_readers(folder: Path) -> int:
    """Number of processes that read from the cache; processes that were killed a moment ago may be counted."""
    return sum(1 for _ in folder.glob(f"*{SUFFIX}"))


def unlock(handle: int) -> None:
    """Unlock and close a file. Closing alone would not unlock it if a worker process that was forked meanwhile has it open."""
    fcntl.flock(handle, fcntl.LOCK_UN)
    os.close(handle)


def _lock(path: Path) -> int:
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    fcntl.flock(handle, fcntl.LOCK_EX)
    return handle


def _read(path: Path) -> dict[str, Any]:
    """The content of a lease; empty if it is gone or stays incomplete."""
    deadline = time.monotonic() + MAX_WRITE_SECONDS
    while True:
        try:
            content = json.loads(path.read_bytes())
            return content if isinstance(content, dict) else {}
        except OSError:
            return {}
        except ValueError:
            if time.monotonic() > deadline:
                return {}
            time.sleep(POLL_SECONDS)


def _is_dead(path: Path) -> bool:
    """Whether the process of a lease is gone; its lease is then removed."""
    with contextlib.suppress(OSError):
        handle = os.open(path, os.O_RDWR)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink(missing_ok=True)
            return True
        except OSError:
            return False
        finally:
            unlock(handle)
    return True
