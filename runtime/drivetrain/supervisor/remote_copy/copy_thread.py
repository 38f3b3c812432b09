"""The thread of the supervisor that copies a run to its store while the run trains, and what is missing at its end."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from pathlib import Path

from drivetrain.errors import Busy, Failure, Stopped, StorageError
from drivetrain.storage.object_store import Patience
from drivetrain.supervisor.remote_copy.owner_file import LostOwnership, OwnerFile
from drivetrain.supervisor.remote_copy.run_copy import RunCopy
from drivetrain.system import signals
from drivetrain.system.console import say
from drivetrain.system.run_files import STATE_FILE
from drivetrain.tracking.event_log import EventLog

POLL_SECONDS = 1.0
"""Between two looks at the folder for a new checkpoint."""
RETRY_SECONDS = 10.0
"""Between two attempts at a store that does not answer, while the run trains."""
SMALL_FILES_SECONDS = 60.0
"""After which the small files are copied without a new checkpoint."""
STALL_SECONDS = 120.0
"""Without progress, after which the copy of a finished run has failed."""
STOPPED_SECONDS = 40.0
"""For the rest of a run that was stopped: containers of ours are given 60 s in all before they are killed."""
AT_ONCE_SECONDS = 3.0
"""The same for one whose user does not want to wait."""
PATIENCE = Patience(retries=20.0, silence=60.0)
"""An attempt that fails is made again anyway."""
MAX_LISTED_FILES = 3
"""How many missing files a message names."""


class _Abandoned(Exception):
    """The supervisor waits no more."""


class CopyThread:
    """Sends what is new, and is patient with a store that is away."""

    def __init__(self, run: Path, owner_file: OwnerFile, keep: int) -> None:
        """
        Args:
            owner_file: of the copy, taken by this process.
            keep: how many checkpoints stay in the store.
        """
        self.run = run
        self.address = owner_file.store.address
        self.copy = RunCopy(owner_file, run, keep, self._note_progress)
        self.events = EventLog(run)
        self.is_lost = self.is_complete = False
        self._problem = ""
        """Why the last attempt failed; empty if it did not."""
        self._progress_at = time.monotonic()
        self._small_files_at = 0.0
        self._run_ended, self._abandoned = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._copy, name="copy", daemon=True)
        self._thread.start()

    def finish(self, code: int) -> int:
        """Let it send the rest, and wait for it; returns the exit code of the run.

        Args:
            code: of the run without its copy.
        """
        seconds = STALL_SECONDS if code == 0 else AT_ONCE_SECONDS if code in signals.ABORTED_CODES else STOPPED_SECONDS
        since = time.monotonic()
        self._run_ended.set()
        while self._thread.is_alive() and time.monotonic() - since <= seconds:
            self._thread.join(0.1)
            since = max(since, self._progress_at) if code == 0 else since
        self._abandoned.set()
        if self.is_lost and code in (0, Stopped.exit_code):
            say(f"{self.address} belongs to another process now: the run goes on there")
            return Busy.exit_code
        return code if self.is_lost or self.is_complete else self._report_missing(code)

    def cancel(self) -> None:
        """End it, for a run whose folder is removed."""
        self._abandoned.set()
        self._run_ended.set()
        self._thread.join(AT_ONCE_SECONDS)

    def _copy(self) -> None:
        if sys.platform == "linux":
            with contextlib.suppress(OSError):  # hashes of checkpoints are computed when the trainer needs no CPU
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)
        try:
            while not self._run_ended.wait(RETRY_SECONDS if self._problem else POLL_SECONDS):
                if self._is_due():
                    self._attempt()
            while not self._attempt() or self.copy.missing():
                if self._abandoned.wait(POLL_SECONDS):
                    return
            self.is_complete = True
            self.copy.owner_file.release()
        except LostOwnership:
            self.is_lost = True
            self.events.add(
                "copy",
                f"{self.address} is written by another process now, which continues this run; nothing more is sent",
            )
        except _Abandoned:
            pass

    def _attempt(self) -> bool:
        """Bring the copy up to date; a problem is reported once. Returns whether everything is there."""
        try:
            self.copy.send()
        except (Failure, OSError) as error:
            problem = error.given if isinstance(error, Failure) else f"{error.filename}: {error.strerror}"
            if problem != self._problem:
                self.events.add("copy", f"{problem}; training goes on, and what is missing is sent later")
                if isinstance(error, Failure) and error.action:
                    say(f"  do:       {error.action}")
            self._problem = problem
            return False
        if self._problem:
            self.events.add("copy", f"{self.address} answers again; everything so far is there")
        self._problem, self._small_files_at = "", time.monotonic()
        return True

    def _is_due(self) -> bool:
        is_late = time.monotonic() - self._small_files_at >= SMALL_FILES_SECONDS
        return bool(self._problem) or is_late or self.copy.find_unsent() is not None

    def _note_progress(self) -> None:
        self._progress_at = time.monotonic()
        if self._abandoned.is_set():
            raise _Abandoned

    def _report_missing(self, code: int) -> int:
        """Say what is not in the store; returns the exit code of the run."""
        names = self.copy.missing() or [STATE_FILE]
        remainder = f" and {len(names) - MAX_LISTED_FILES} more" if len(names) > MAX_LISTED_FILES else ""
        reason = f" ({self._problem})" if self._problem else ""
        self.events.add("copy", f"{self.address} lacks {', '.join(names[:MAX_LISTED_FILES])}{remainder}{reason}")
        is_resumable = code == Stopped.exit_code and not names[0].startswith("step-")
        if is_resumable or code not in (0, Stopped.exit_code):
            return code
        local = "the run is complete" if code == 0 else "the last checkpoint is complete"
        say(
            f"copy: incomplete, exit {StorageError.exit_code}; {local} in {self.run}, and the same command sends the rest"
        )
        return StorageError.exit_code
