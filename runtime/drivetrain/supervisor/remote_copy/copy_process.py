"""The process that copies a run to its store. Started by `copy_child`, beside the trainer.

python -m drivetrain.supervisor.remote_copy.copy_process RUN ADDRESS KEEP ALIVE

It ends when its standard input is closed. A line that comes before is the seconds that it may take for the rest, and
`idle` if only seconds count in which nothing moves. From then on it writes to the descriptor ALIVE as long as it is well.
Exit code 0: everything is there; 7: something is missing; 11: somebody else writes this run; 75: the last checkpoint is
there, and something else is missing.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from pathlib import Path

from drivetrain.errors import Busy, Stopped, StorageError
from drivetrain.storage.object_store import ObjectStore, Patience
from drivetrain.storage.remote_address import parse
from drivetrain.storage.store_errors import RemoteError
from drivetrain.supervisor.remote_copy import copy_record
from drivetrain.supervisor.remote_copy.run_copy import LostLock, RunCopy
from drivetrain.supervisor.remote_copy.writer_lock import WriterLock
from drivetrain.system import signals
from drivetrain.system.console import guard_output, say, say_aside
from drivetrain.tracking.event_log import EventLog

POLL_SECONDS = 1.0
"""Seconds between two looks at the folder for a new checkpoint."""
SMALL_FILES_SECONDS = 60.0
"""Seconds after which the small files are copied without a new checkpoint."""
LONGEST_PAUSE = 30.0
"""Seconds between two attempts at a store that does not answer."""
ORPHAN_SECONDS = 20.0
"""Seconds for the rest if the process that started this one has died."""
PATIENCE = Patience(retries=20.0, silence=60.0)
"""An attempt that fails is made again anyway."""
MAX_LISTED_FILES = 3
"""How many missing files a message names."""


def main() -> int:
    """Copy until the end of the run."""
    guard_output()
    signals.ignore_signals()  # the run's end is what ends this process
    os.nice(10)
    folder, address, keep, alive = Path(sys.argv[1]), parse(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    record = copy_record.of_folder(folder)
    if record is None:
        say_aside(f"{folder}: there is no {copy_record.FILE}")
        return StorageError.exit_code
    os.set_blocking(alive, False)
    return Copying(folder, ObjectStore(address, PATIENCE), keep, record.writer, alive).run()


class Copying:
    """Sends what is new, and is patient with a store that is away."""

    def __init__(self, folder: Path, store: ObjectStore, keep: int, writer: str, alive: int | None = None) -> None:
        self.store = store
        self.alive = alive
        """The descriptor on which our starter sees that we are well."""
        self.events = EventLog(folder)
        self.lock = WriterLock(store, writer)
        self.copy = RunCopy(store, folder, keep, self._check)
        self.copy.moved = self._note_movement
        self.trouble = ""
        self.pause = POLL_SECONDS
        self._ended, self._done = threading.Event(), threading.Event()
        self._moved = time.monotonic()
        self._quiet = 0.0
        """When the small files were copied last."""

    def run(self) -> int:
        """Copy until standard input is closed, and then the rest; returns the exit code."""
        threading.Thread(target=self._listen, name="end", daemon=True).start()
        try:
            self._adopt()
            with self.lock.beating():
                while not self._ended.wait(self.pause):
                    if self._due():
                        self.attempt()
                self._finish()
        except LostLock:
            return self._end_lost()
        self.lock.release()
        return 0

    def attempt(self) -> bool:
        """Bring the copy up to date; trouble is told once. Returns whether everything is there."""
        try:
            self.copy.send()
        except (RemoteError, OSError) as error:
            self._failed(error)
            return False
        if self.trouble:
            self.events.add("copy", f"{self.store.address} answers again; everything so far is there")
        self.trouble, self.pause, self._quiet = "", POLL_SECONDS, time.monotonic()
        return True

    def _finish(self) -> None:
        """Send the rest; `_listen` ends the process if it takes too long."""
        pause = 0.5
        while not self.attempt() or self.copy.missing():
            time.sleep(pause)
            pause = min(2 * pause, 5.0)
        self._done.set()

    def _listen(self) -> None:
        """Wait for the end of the run, and from then on for the end of our time: an upload cannot be asked to end."""
        message = sys.stdin.readline().split()
        begun = self._moved = time.monotonic()
        self._ended.set()
        seconds = float(message[0]) if message else ORPHAN_SECONDS
        while not self._done.wait(0.2):
            self._show_life()
            if time.monotonic() - (self._moved if "idle" in message else begun) > seconds:
                os._exit(self._incomplete())

    def _show_life(self) -> None:
        if self.alive is not None:
            with contextlib.suppress(OSError):  # nobody reads any more
                os.write(self.alive, b".")

    def _adopt(self) -> None:
        while True:
            try:
                self.lock.adopt()
                return
            except RemoteError as error:  # it went away after our starter has reached it
                self._failed(error)
                self._ended.wait(self.pause)

    def _due(self) -> bool:
        if self.trouble or time.monotonic() - self._quiet >= SMALL_FILES_SECONDS:
            return True
        newest = self.copy.newest()
        return newest is not None and newest.name not in self.copy.up

    def _note_movement(self) -> None:
        self._moved = time.monotonic()

    def _check(self) -> None:
        self.lock.check()
        if self.lock.lost:
            raise LostLock

    def _failed(self, error: RemoteError | OSError) -> None:
        text = error.given if isinstance(error, RemoteError) else f"{error.filename}: {error.strerror}"
        if text != self.trouble:
            self.events.add("copy", f"{text}; training goes on, and what is missing is sent later")
            if isinstance(error, RemoteError) and error.action:
                say(f"  do:       {error.action}")
        self.trouble = text
        self.pause = min(max(2 * POLL_SECONDS, 2 * self.pause), LONGEST_PAUSE)

    def _incomplete(self) -> int:
        """Tell what is missing; returns the exit code."""
        missing = self.copy.missing() or ["state.json"]
        remainder = f" and {len(missing) - MAX_LISTED_FILES} more" if len(missing) > MAX_LISTED_FILES else ""
        reason = f" ({self.trouble})" if self.trouble else ""
        self.events.add(
            "copy", f"{self.store.address} lacks {', '.join(missing[:MAX_LISTED_FILES])}{remainder}{reason}"
        )
        return Stopped.exit_code if self.copy.has_last_checkpoint() else StorageError.exit_code

    def _end_lost(self) -> int:
        self.events.add(
            "copy",
            f"{self.store.address} is written by another process now, which continues this run; nothing more is sent",
        )
        return Busy.exit_code


if __name__ == "__main__":
    sys.exit(main())
