"""Which rows of metrics.jsonl a tracking server has: none is lost, and none is sent twice.

A batch is noted with its time before it is sent, and confirmed afterwards. After a crash in between, the same rows are
sent with the same time, and a server that compares points keeps them once.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from typing import Any

from drivetrain.errors import Busy
from drivetrain.system import file_lock
from drivetrain.system.files import storage_error
from drivetrain.system.run_files import METRICS_FILE, RunFiles, lines

FILE = "sent.jsonl"
LOCK = "lock"
LOCK_SECONDS = 10.0
"""Seconds for a process that copies the same run to end; one whose run was killed takes five."""


class SentRows:
    """The journal of one server; only one process has it open."""

    def __init__(self, files: RunFiles) -> None:
        """
        Args:
            files: the folder of one server in the run folder.

        Raises:
            StorageError: if its folder cannot be written.
            Busy: if another process copies this run.
        """
        self.files = files
        self.sent: set[str] = set()
        self.batches: dict[int, tuple[int, list[str]]] = {}
        """Time and rows of batches of which nobody knows whether the server has them, by number."""
        self.last = 0
        self.noted: list[int] = []
        files.make_folder()
        self.lock = _lock(files)
        for entry in files.read_rows(FILE):
            self._take(entry)
        self.begin = "\n"
        """Before the first entry: one that a crash cut off ends there."""

    def close(self) -> None:
        """Let another process have it."""
        os.close(self.lock)

    def missing(self, lines: Sequence[str]) -> list[str]:
        """The lines that the server does not have, in their order."""
        return [line for line in lines if _key(line) not in self.sent]

    def note(self, lines: Sequence[str], now: int) -> list[int]:
        """Note that these lines are about to be sent; returns the time of each, in milliseconds.

        Raises:
            StorageError: if the disk is full; then they must not be sent.
        """
        keys = [_key(line) for line in lines]
        before = {key: moment for moment, rows in self.batches.values() for key in rows}
        times = [before.get(key, now) for key in keys]
        self.noted = []
        for moment in sorted(set(times)):
            rows = [key for key, its in zip(keys, times, strict=True) if its == moment]
            self.last += 1
            self._append({"batch": self.last, "time": moment, "rows": rows})
            self.batches[self.last] = moment, rows
            self.noted.append(self.last)
        return times

    def confirm(self) -> None:
        """Record that the server has what was noted last."""
        self._append({"confirmed": self.noted})
        self._confirm(self.noted)

    def _confirm(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            self.sent |= set(self.batches.pop(number, (0, []))[1])

    def _take(self, entry: dict[str, Any]) -> None:
        if "confirmed" in entry:
            self._confirm(entry["confirmed"])
        else:
            self.last = entry["batch"]
            self.batches[self.last] = entry["time"], entry["rows"]

    def _append(self, entry: dict[str, object]) -> None:
        try:
            with self.files.open(FILE, "a") as file:
                file.write(f"{self.begin}{json.dumps(entry)}\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise storage_error(self.files.path / FILE, error) from None
        self.begin = ""


def _lock(files: RunFiles) -> int:
    """Lock the folder of a server; returns the open file that holds the lock."""
    try:
        handle = file_lock.acquire(LOCK, LOCK_SECONDS, files.open_handle)
    except OSError as error:
        raise storage_error(files.path / LOCK, error) from None
    if handle is None:
        raise Busy(
            f"{files.run}: another process copies this run to the same server",
            "one process for each run and server",
            "wait until the run or the other command has ended",
        )
    return handle


def _key(line: str) -> str:
    return hashlib.blake2b(line.encode(), digest_size=8).hexdigest()


class RowReader:
    """Reads the lines that are added to metrics.jsonl; when a resume has shortened the file, from its beginning."""

    def __init__(self, files: RunFiles) -> None:
        self.files = files
        self.place: tuple[int, int] = (0, 0)
        """Number of the file, and the bytes of it that were read."""
        self.from_beginning = True
        """Whether the last call gave all lines of the file."""

    def new(self) -> Iterator[str]:
        """Complete lines since the last call."""
        self.from_beginning = False
        try:
            with self.files.open(METRICS_FILE, "rb") as file:
                status = os.fstat(file.fileno())
                number, start = self.place
                if number != status.st_ino or start > status.st_size:
                    start = 0
                self.from_beginning = start == 0
                file.seek(start)
                self.place = status.st_ino, start
                for line in lines(file):
                    if line.endswith(b"\n"):
                        self.place = status.st_ino, self.place[1] + len(line)
                        yield line.decode(errors="replace").rstrip("\r\n")
        except OSError:
            return
