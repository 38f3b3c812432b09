"""Leases: a file for each process that reads from the cache says which shards it needs soon; it is locked while it lives."""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from drivetrain.system import file_lock
from drivetrain.system.files import blame_storage, make_folder

SUFFIX = ".lease"
POLL_SECONDS = 0.0005
"""Seconds between two attempts to read a lease that is being written."""
MAX_WRITE_SECONDS = 0.5
"""Seconds after which the writer of an incomplete lease counts as killed."""


class Lease:
    """The lease of one reader. Worker processes read in it why a shard could not be fetched."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / f"{uuid.uuid4().hex}{SUFFIX}"
        make_folder(folder)
        with blame_storage(folder):
            self.handle = file_lock.open_locked(self.path)
        self.write(())

    def write(self, names: Sequence[str], errors: Mapping[str, Sequence[str]] | None = None) -> None:
        """Replace the content of the lease.

        Args:
            names: names of needed shards, in the order of need.
            errors: by shard name, class and parts of the error for which it could not be fetched.

        Raises:
            StorageError: if it cannot be written.
        """
        text = json.dumps({"names": list(names), "errors": dict(errors or {})}).encode()
        # Written in place, since a new file would have no lock. A reader that finds it incomplete reads it again.
        with blame_storage(self.path.parent):
            os.truncate(self.handle, 0)
            os.pwrite(self.handle, text, 0)

    def error(self, name: str) -> list[str]:
        """Class name and parts of the error for which a shard could not be fetched; empty if there is none."""
        return [str(part) for part in _read(self.path).get("errors", {}).get(name, ())]

    def end(self) -> None:
        """Remove the lease."""
        self.path.unlink(missing_ok=True)
        file_lock.unlock(self.handle)


def read_needed(folder: Path) -> dict[str, int]:
    """How soon each shard is needed, by name: 0 is at once. Leases of processes that are gone are removed."""
    soon: dict[str, int] = {}
    for path in folder.glob(f"*{SUFFIX}"):
        with file_lock.try_lock(path) as handle:
            if handle is not None:
                path.unlink(missing_ok=True)
                continue
        for position, name in enumerate(_read(path).get("names", [])):
            soon[name] = min(position, soon.get(name, position))
    return soon


def count_readers(folder: Path) -> int:
    """Number of processes that read from the cache; processes that were killed a moment ago may be counted."""
    return sum(1 for _ in folder.glob(f"*{SUFFIX}"))


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
