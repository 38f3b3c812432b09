"""The ledger of a tracking server: which rows of metrics.jsonl it has, so that none is lost and none is sent twice.

A row whose arrival a crash kept from being recorded is sent again with the time that was noted before, and a server
that compares points keeps it once.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Collection

from drivetrain.errors import Busy
from drivetrain.system import file_lock
from drivetrain.system.files import blame_storage
from drivetrain.system.run_files import RunFiles

FILE = "sent.jsonl"
LOCK_SECONDS = 20.0
"""Seconds for a process that copies the same run to end: one whose run was killed takes two, and one request."""


class SentRows:
    """The ledger of one server; only one process has it open.

    Args:
        files: the folder of the server in the run folder.

    Raises:
        StorageError: if the folder cannot be written; also the methods.
        Busy: if another process copies this run.
    """

    def __init__(self, files: RunFiles) -> None:
        self.files = files
        files.make_folder()
        with blame_storage(files.path):
            lock = file_lock.acquire("lock", LOCK_SECONDS, files.open_handle)
        if lock is None:
            raise Busy(
                f"{files.run}: another process copies this run to the same server",
                "one process for each run and server",
                "wait until the run or the other command has ended",
            )
        self.lock = lock
        self.times: dict[str, int] = {}
        """When a row was first to be sent, by its key, in milliseconds since 1970."""
        self.sent: set[str] = set()
        for entry in files.read_rows(FILE):
            self.times |= dict.fromkeys(entry.get("rows", ()), entry.get("time", 0))
            self.sent.update(entry.get("sent", ()))

    def close(self) -> None:
        """Let another process have it."""
        os.close(self.lock)

    def note_times(self, keys: Collection[str]) -> None:
        """Give rows the present time, except those that have one."""
        if new := [key for key in keys if key not in self.times]:
            now = time.time_ns() // 1_000_000
            self._append({"time": now, "rows": new})
            self.times |= dict.fromkeys(new, now)

    def confirm(self, keys: Collection[str]) -> None:
        """Record that the server has these rows."""
        self._append({"sent": [*keys]})
        self.sent.update(keys)

    def _append(self, entry: dict[str, object]) -> None:
        with blame_storage(self.files.path / FILE), self.files.open(FILE, "a") as file:
            file.write(f"\n{json.dumps(entry)}\n")  # an entry that a crash has cut off ends before this one
            file.flush()
            os.fsync(file.fileno())
