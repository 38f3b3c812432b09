"""What runs need of the cache soon: a file for each process that reads, locked while it lives."""

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
AGAIN, PATIENCE = 0.0005, 0.5
"""Seconds between two looks at a lease that is being written, and until its writer counts as stopped in the middle."""


class Lease:
    """The lease of one reader. Worker processes see in it why a shard cannot be had."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / f"{uuid.uuid4().hex}{SUFFIX}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self.handle = _lock(self.path)
            while not os.fstat(self.handle).st_nlink:  # taken for a dead one before it was locked
                unlock(self.handle)
                self.handle = _lock(self.path)
        except OSError as error:
            raise storage_error(folder, error) from None
        self.write(())

    def write(
        self, names: Sequence[str], ending: Sequence[str] = (), errors: Mapping[str, Sequence[str]] | None = None
    ) -> None:
        """Store what is needed.

        Args:
            names: of shards, in the order of need.
            ending: those that no batch after the present one needs.
            errors: why some of them cannot be had.

        Raises:
            StorageError: if it cannot be written.
        """
        text = json.dumps({"names": list(names), "ending": list(ending), "errors": dict(errors or {})}).encode()
        # A new file would have no lock. Who reads it half written reads it again.
        try:
            os.truncate(self.handle, 0)
            os.pwrite(self.handle, text, 0)
        except OSError as error:
            raise storage_error(self.path.parent, error) from None

    def error(self, name: str) -> list[str]:
        """Kind and parts of the error of a shard; empty if there is none."""
        return [str(part) for part in _read(self.path).get("errors", {}).get(name, ())]

    def end(self) -> None:
        """Give everything back."""
        self.path.unlink(missing_ok=True)
        unlock(self.handle)


def read_needed(folder: Path) -> tuple[dict[str, int], set[str]]:
    """How soon each shard is needed, by name: 0 is at once; and those whose last batch it is.

    Leases of processes that are gone are removed.
    """
    soon: dict[str, int] = {}
    lasting: set[str] = set()
    for path in folder.glob(f"*{SUFFIX}"):
        if _is_dead(path):
            continue
        lease = _read(path)
        names = lease.get("names", [])
        for position, name in enumerate(names):
            soon[name] = min(position, soon.get(name, position))
        lasting |= set(names) - set(lease.get("ending", ()))
    return soon, soon.keys() - lasting


def count(folder: Path) -> int:
    """How many processes read; those that were killed a moment ago may be among them."""
    return sum(1 for _ in folder.glob(f"*{SUFFIX}"))


def unlock(handle: int) -> None:
    """Close a locked file. A worker process that was forked meanwhile has the lock too, so closing alone would not end it."""
    fcntl.flock(handle, fcntl.LOCK_UN)
    os.close(handle)


def _lock(path: Path) -> int:
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    fcntl.flock(handle, fcntl.LOCK_EX)
    return handle


def _read(path: Path) -> dict[str, Any]:
    """What a lease says; nothing if it is gone, or stays half written."""
    end = time.monotonic() + PATIENCE
    while True:
        try:
            content = json.loads(path.read_bytes())
            return content if isinstance(content, dict) else {}
        except OSError:
            return {}
        except ValueError:
            if time.monotonic() > end:
                return {}
            time.sleep(AGAIN)


def _is_dead(path: Path) -> bool:
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
