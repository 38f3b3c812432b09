"""Copies a run folder to a store with a thread: finished checkpoints, all small files and the model.

The manifest of a checkpoint is sent last, so a copy that was killed at any point has the earlier checkpoints.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

from drivetrain.data.fingerprint import stamp
from drivetrain.errors import Busy, Failure, Stopped, StorageError
from drivetrain.storage.object_store import Patience
from drivetrain.supervisor.remote_copy.attempts import ATTEMPTS, Attempt, NewerAttempt, find_whole, list_names
from drivetrain.system import signals
from drivetrain.system.console import say
from drivetrain.system.files import parse_row
from drivetrain.system.run_files import (
    CHECKPOINTS,
    COPY_FILE,
    RANKS,
    STATE_FILE,
    RunFiles,
    list_checkpoints,
    parse_suffix,
)
from drivetrain.tracking.event_log import EventLog, OutageLog
from drivetrain.training.checkpoints.manifest import MANIFEST, find_best_step, verify

LEFT_OUT = (CHECKPOINTS, RANKS, ATTEMPTS, COPY_FILE)
"""Parts of a run folder or copy that are copied in another way, useless elsewhere, or valid only here."""
_PART = re.compile(r"(?!\.)[^/\\\x00-\x1f]{1,255}")
POLL_SECONDS = 1.0
"""Interval of checking the folder for a new checkpoint."""
RETRY_SECONDS = 10.0
"""Interval of attempts at a store that does not answer, while the run trains."""
SMALL_FILES_SECONDS = 60.0
"""Interval of copying the small files without a new checkpoint."""
STALL_SECONDS = 120.0
"""Time without progress after which the copy of a finished run has failed."""
STOPPED_SECONDS = 40.0
"""Time limit for the rest of a stopped run: our containers get 60 s in all before they are killed."""
AT_ONCE_SECONDS = 3.0
"""Time limit for the rest of a run whose user does not want to wait."""
PATIENCE = Patience(retries=20.0, silence=60.0)
"""Limits of one attempt; a failed attempt is repeated anyway."""
MAX_LISTED_FILES = 3
"""Largest number of missing files in a message."""


class RunCopy:
    """A run folder and its copy, which this attempt writes."""

    def __init__(self, attempt: Attempt, run: Path, keep: int) -> None:
        """
        Args:
            keep: number of checkpoints to keep in the store.
        """
        self.attempt = attempt
        self.store = attempt.store
        self.run = run
        self.keep = keep
        self.note_progress: Callable[[], None] = lambda: None
        """Function that is called when the store has received an object or a part of it; its errors end the upload."""
        self.sent: set[str] = set()
        """Checkpoints of the folder that are completely in the store."""
        self.damaged: set[str] = set()
        self._stamps: dict[str, str] = {}
        """Stamps of the files in the store at the time of sending."""
        self._sent_state = b""

    def send(self) -> None:
        """Bring the copy up to date; the state of the run comes last, so a finished copy is complete.

        Raises:
            RemoteError: if the store refuses or does not answer; the same call sends the rest.
            NewerAttempt: if another process writes the copy.
            OSError: if a file of the folder cannot be read.
        """
        state = b""
        with contextlib.suppress(OSError):
            # Read the state before the files that it refers to: a file replaced meanwhile is sent by the next call.
            state = RunFiles(self.run).read_bytes(STATE_FILE)
        self._send_files()
        checkpoint = self.find_unsent()
        if checkpoint and not self._send_checkpoint(checkpoint):
            return  # it was removed meanwhile: the next call sends the following checkpoint, then the state
        if state not in (b"", self._sent_state):
            self.attempt.check()
            self.store.put(STATE_FILE, state)
            self._sent_state = state

    def find_unsent(self) -> Path | None:
        """Find the newest checkpoint of the folder that matches its manifest; None if it is in the store."""
        for path in reversed(list_checkpoints(self.run / CHECKPOINTS)):
            if path.name in self.sent:
                break
            if path.name not in self.damaged:
                if verify(path) is None:
                    return path
                if path.exists():  # otherwise it was removed meanwhile
                    self.damaged.add(path.name)
        return None

    def missing(self) -> list[str]:
        """List the files that differ from the copy in the store."""
        checkpoint = self.find_unsent()
        names = [name for name, _ in self._list_unsent_files()]
        return [checkpoint.name, *names] if checkpoint else names

    def _send_checkpoint(self, path: Path) -> bool:
        """Copy the best checkpoint that a checkpoint names, then the checkpoint; returns whether it still exists."""
        with contextlib.ExitStack() as stack:
            files = _open_files(path, stack)
            if not files:
                return False
            best = self.run / CHECKPOINTS / f"best-{find_best_step(parse_row(files[STATE_FILE].read()) or {})}"
            best_files = _open_files(best, stack)
            if best_files and verify(best) is None:
                self._send_folder(best.name, best_files)
            # The rows of metrics that a checkpoint needs are sent before it.
            self._send_files()
            self._send_folder(path.name, files)
        self._remove_older(parse_suffix(path))
        self.sent |= {path.name, best.name}
        return True

    def _send_folder(self, name: str, files: Mapping[str, BinaryIO]) -> None:
        """Copy a folder unless the store has it: a resumed run begins with a checkpoint from the store."""
        whole = find_whole(list_names(self.store), name.partition("-")[0])
        stored = [folder for folder in whole if folder.endswith(f"/{name}")]
        if not any(self._has(files, folder) for folder in stored):
            for part, file in files.items():
                self._send_file(f"{CHECKPOINTS}/{self.attempt.number:06}/{name}/{part}", file)

    def _has(self, files: Mapping[str, BinaryIO], folder: str) -> bool:
        """Return whether a folder of the store has these files, compared by their sizes and the manifest."""
        prefix = f"{CHECKPOINTS}/{folder}"
        stored_sizes = {entry.name: entry.bytes for entry in self.store.objects(prefix)}
        sizes = {f"{prefix}/{part}": os.fstat(file.fileno()).st_size for part, file in files.items()}
        files[MANIFEST].seek(0)
        return (
            sizes.items() <= stored_sizes.items() and self.store.get(f"{prefix}/{MANIFEST}") == files[MANIFEST].read()
        )

    def _remove_older(self, step: int) -> None:
        """Remove all but the last `keep` checkpoints up to a step, and all but as many best checkpoints."""
        names, remaining = list_names(self.store), set[str]()
        for kind in ("step", "best"):
            folders = [folder for folder in find_whole(names, kind) if parse_suffix(folder) <= step]
            remaining |= set(folders[-self.keep :])
        removed = [
            name
            for name in names
            # A newer attempt may have begun at this moment: its objects are kept.
            if name.split("/")[1] <= f"{self.attempt.number:06}" and "/".join(name.split("/")[1:3]) not in remaining
        ]
        if removed:
            self.attempt.check()
            # Manifests are removed first, because they make checkpoints complete.
            self.store.delete(sorted(removed, key=lambda name: not name.endswith(f"/{MANIFEST}")))

    def _send_files(self) -> None:
        """Copy the files that have changed, except for the state."""
        for name, path in self._list_unsent_files():
            present = stamp(path)
            with contextlib.suppress(FileNotFoundError), path.open("rb") as file:  # replaced in this moment
                self._send_file(name, file)
                self._stamps[name] = present

    def _list_unsent_files(self) -> Iterator[tuple[str, Path]]:
        """Yield name and path of the files, except the state, that differ from the store."""
        for folder, folders, names in os.walk(self.run):
            relative = Path(folder).relative_to(self.run)
            folders[:] = sorted(name for name in folders if is_small((relative / name).as_posix()))
            for path in (Path(folder) / name for name in sorted(names)):
                name = (relative / path.name).as_posix()
                is_ours = is_small(name) and name != STATE_FILE and not path.is_symlink()
                if is_ours and stamp(path) not in ("", self._stamps.get(name)):
                    yield name, path

    def _send_file(self, name: str, file: BinaryIO) -> None:
        self.attempt.check()
        file.seek(0)
        self.store.put_file(name, file, self.note_progress)
        self.note_progress()


def is_small(name: str) -> bool:
    """Return whether a name is of a file that is copied unchanged; False if it is hidden or outside of the folder."""
    parts = name.split("/")
    return parts[0] not in LEFT_OUT and all(map(_PART.fullmatch, parts))


def _open_files(folder: Path, stack: contextlib.ExitStack) -> dict[str, BinaryIO]:
    """Open the files of a checkpoint, MANIFEST.json last; empty if it is missing. Open files outlive its removal."""
    try:
        return {part.name: stack.enter_context(part.open("rb")) for part in sorted(folder.iterdir(), reverse=True)}
    except FileNotFoundError:
        return {}


class _Abandoned(Exception):
    """The supervisor does not wait any longer."""


class CopyThread:
    """Thread that sends new files, and waits for a store that does not answer."""

    def __init__(self, copy: RunCopy) -> None:
        self.copy = copy
        copy.note_progress = self._note_progress
        self.address = copy.store.address
        self.events = EventLog(copy.run)
        self.outages = OutageLog(self.events, "copy", self.address)
        self.is_lost = self.is_complete = False
        self._progress_at = time.monotonic()
        self._small_files_at = 0.0
        self._run_ended, self._abandoned = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._copy, name="copy", daemon=True)
        self._thread.start()

    def finish(self, code: int) -> int:
        """Wait until the thread has sent the rest; returns the exit code of the run.

        Args:
            code: exit code of the run without its copy.
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
        """End the thread, for a run whose folder is removed."""
        self._abandoned.set()
        self._run_ended.set()
        self._thread.join(AT_ONCE_SECONDS)

    def _copy(self) -> None:
        if sys.platform == "linux":
            with contextlib.suppress(OSError):  # hashes of checkpoints are computed when the trainer needs no CPU
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)
        try:
            while not self._run_ended.wait(RETRY_SECONDS if self.outages.problem else POLL_SECONDS):
                is_late = time.monotonic() - self._small_files_at >= SMALL_FILES_SECONDS
                if self.outages.problem or is_late or self.copy.find_unsent():
                    self._attempt()
            while not self._attempt() or self.copy.missing():
                if self._abandoned.wait(POLL_SECONDS):
                    return
            self.is_complete = True
        except NewerAttempt:
            self.is_lost = True
            self.events.add(
                "copy",
                f"{self.address} is written by another process now, which continues this run; nothing more is sent",
            )
        except _Abandoned:
            pass

    def _attempt(self) -> bool:
        """Bring the copy up to date; returns whether it is complete."""
        error: Failure | OSError | None = None
        try:
            self.copy.send()
            self._small_files_at = time.monotonic()
        except (Failure, OSError) as problem:
            error = problem
        if not self._abandoned.is_set():
            self.outages.note_attempt(error)
        return error is None

    def _note_progress(self) -> None:
        self._progress_at = time.monotonic()
        if self._abandoned.is_set():
            raise _Abandoned

    def _report_missing(self, code: int) -> int:
        """Report the files that are missing in the store; returns the exit code of the run."""
        names = self.copy.missing() or [STATE_FILE]
        remainder = f" and {len(names) - MAX_LISTED_FILES} more" if len(names) > MAX_LISTED_FILES else ""
        reason = f" ({self.outages.problem})" if self.outages.problem else ""
        self.events.add("copy", f"{self.address} lacks {', '.join(names[:MAX_LISTED_FILES])}{remainder}{reason}")
        is_resumable = code == Stopped.exit_code and not names[0].startswith("step-")
        if is_resumable or code not in (0, Stopped.exit_code):
            return code
        local = "the run is complete" if code == 0 else "the last checkpoint is complete"
        say(
            f"copy: incomplete, exit {StorageError.exit_code}; {local} in {self.copy.run}, and the same command sends the rest"
        )
        return StorageError.exit_code
