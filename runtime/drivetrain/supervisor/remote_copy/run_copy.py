"""Copies a run folder to a store with a thread: after each checkpoint the small files and its files, the state last.

attempts/000002.json            one object for each start, created only if it does not exist: the newest one writes
checkpoints/000002/step-100/    a step or best checkpoint, under the number of its attempt; its manifest is sent last
job.yaml, metrics.jsonl, ...    as in the folder

So no attempt overwrites a checkpoint of another one, and a copy that was killed at any point has the earlier checkpoints.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import BinaryIO

from drivetrain.data.fingerprint import stamp
from drivetrain.errors import Busy, CheckpointError, Failure, Stopped, StorageError
from drivetrain.storage.object_store import ObjectStore, Patience
from drivetrain.system import signals
from drivetrain.system.console import say
from drivetrain.system.files import parse_row, to_json
from drivetrain.system.run_files import CHECKPOINTS, RANKS, STATE_FILE, RunFiles, list_checkpoints, parse_suffix
from drivetrain.system.run_records import RunState
from drivetrain.tracking.event_log import EventLog, OutageLog
from drivetrain.training.checkpoints.manifest import MANIFEST, find_best_step, verify

ATTEMPTS = "attempts"
PLAIN_NAME = re.compile(r"(?!\.)[^/\\\x00-\x1f]{1,255}")
"""Names of files that are copied: not hidden, and nowhere else than in their folder."""
_WHOLE = re.compile(rf"{CHECKPOINTS}/(\d{{6}}/(?:step|best)-\d+)/{re.escape(MANIFEST)}")
POLL_SECONDS = 1.0
"""Interval of checking the folder for a new checkpoint."""
RETRY_SECONDS = 10.0
"""Interval of attempts at a store that does not answer, while the run trains."""
STALL_SECONDS = 120.0
"""Time without progress after which the copy of a finished run has failed."""
STOPPED_SECONDS = 40.0
"""Time limit for the rest of a stopped run: our containers get 60 s in all before they are killed."""
AT_ONCE_SECONDS = 3.0
"""Time limit for the rest of a run whose user does not want to wait."""
PATIENCE = Patience(retries=20.0)
"""Limits of one attempt; a failed attempt is repeated anyway."""


class NewerAttempt(Exception):
    """Another process is writing the copy now."""


class Attempt:
    """An attempt of this process to write one copy, with its number."""

    def __init__(self, store: ObjectStore, folder: Path) -> None:
        """Become the newest attempt.

        Args:
            folder: run folder, whose key says which run it is; it may be missing.

        Raises:
            RemoteError: if the store does not answer.
            CheckpointError: if the copy belongs to another run.
        """
        self.store = store
        self.run = RunState.read(folder).key or uuid.uuid4().hex
        if folder.is_dir():
            self.note_in(folder)
        is_created = False
        while not is_created:
            self.number = max(list_attempts(store), default=0)
            if self.number:
                copied_run = str((parse_row(store.get(self._object(self.number))) or {}).get("run"))
                if folder.is_dir() and copied_run != self.run:
                    raise CheckpointError(
                        f"{folder} and {store.address} are two different runs of the same name",
                        "one run of each name, wherever it is",
                        "give the job another name, or start a new run with --new",
                    )
                self.run = copied_run
            self.number += 1
            is_created = store.create(self._object(self.number), to_json({"run": self.run}).encode())

    def note_in(self, folder: Path) -> None:
        """Note the run's key in its folder, so that two runs of the same name are not confused."""
        files = RunFiles(folder)
        files.write_json(STATE_FILE, {**files.read_object(STATE_FILE), "key": self.run})

    def check(self) -> None:
        """Check that no newer attempt has begun, before an object is written or removed.

        Raises:
            NewerAttempt: if a newer attempt has begun.
            RemoteError: if the store does not answer.
        """
        if self.store.find_head(self._object(self.number + 1)):
            raise NewerAttempt

    def _object(self, number: int) -> str:
        return f"{ATTEMPTS}/{number:06}.json"


def list_attempts(store: ObjectStore) -> list[int]:
    """List the numbers of the attempts, which are consecutive."""
    matches = [re.fullmatch(rf"{ATTEMPTS}/(\d{{6}})\.json", entry.name) for entry in store.objects(ATTEMPTS)]
    return sorted(int(match[1]) for match in matches if match)


def list_names(store: ObjectStore) -> list[str]:
    """List the objects of all checkpoints."""
    return [entry.name for entry in store.objects(CHECKPOINTS)]


def find_whole(names: Iterable[str], kind: str) -> list[str]:
    """Find the folders of complete checkpoints of a kind, step or best, sorted by attempt and then by step."""
    folders = [match[1] for match in filter(None, map(_WHOLE.fullmatch, names)) if f"/{kind}-" in match[1]]
    return sorted(folders, key=lambda folder: (folder.partition("/")[0], parse_suffix(folder)))


def is_small(name: str) -> bool:
    """Return whether a name is of a file that is copied unchanged: of no checkpoint, and useful elsewhere."""
    parts = name.split("/")
    return parts[0] not in (CHECKPOINTS, RANKS, ATTEMPTS) and all(map(PLAIN_NAME.fullmatch, parts))


class RunCopy:
    """A run folder and its copy, which this attempt writes."""

    def __init__(self, attempt: Attempt, run: Path, keep: int) -> None:
        """
        Args:
            keep: number of checkpoints to keep in the store.
        """
        self.attempt, self.store, self.run, self.keep = attempt, attempt.store, run, keep
        self.note_progress: Callable[[], None] = lambda: None
        """Function that is called when the store has received an object or a part of it; its errors end the upload."""
        self.settled: set[str] = set()
        """Checkpoints of the folder that are completely in the store, or that do not match their manifest."""
        self._stamps: dict[str, str] = {}
        """Stamps of the small files in the store at the time of sending."""

    def send(self) -> None:
        """Bring the copy up to date; the state of the run comes last, so a finished copy is complete.

        Raises:
            RemoteError: if the store refuses or does not answer; the same call sends the rest.
            NewerAttempt: if another process writes the copy.
            OSError: if a file of the folder cannot be read.
        """
        with contextlib.ExitStack() as stack:
            # The state is opened before the files that it refers to: one replaced meanwhile is sent by the next call.
            state_stamp, state = stamp(self.run / STATE_FILE), _open(self.run / STATE_FILE, stack)
            checkpoint = self.find_unsent()
            if checkpoint:
                files = _open_folder(checkpoint, stack)
                if not files:
                    return  # it was removed meanwhile: the next call sends the following checkpoint, then the state
                best = f"best-{find_best_step(parse_row(files[STATE_FILE].read()) or {})}"
                best_files = {} if best in self.settled else _open_folder(self.run / CHECKPOINTS / best, stack)
            self._send_small_files()  # the rows of metrics that a checkpoint needs are sent before it
            if checkpoint:
                for name, parts in ((best, best_files), (checkpoint.name, files)):
                    for part, file in parts.items():
                        self._send_file(f"{CHECKPOINTS}/{self.attempt.number:06}/{name}/{part}", file)
                self._remove_older(parse_suffix(checkpoint))
                self.settled |= {checkpoint.name, best}
            if state and state_stamp != self._stamps.get(STATE_FILE):
                self._send_file(STATE_FILE, state)
                self._stamps[STATE_FILE] = state_stamp

    def find_unsent(self) -> Path | None:
        """Find the newest checkpoint of the folder that matches its manifest; None if it is in the store."""
        for path in reversed(list_checkpoints(self.run / CHECKPOINTS)):
            if path.name in self.settled:
                break
            if verify(path) is None:
                return path
            if path.exists():  # otherwise it was removed meanwhile
                self.settled.add(path.name)
        return None

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

    def _send_small_files(self) -> None:
        """Copy the small files that have changed, except for the state."""
        for folder, _, names in os.walk(self.run):
            for path in (Path(folder) / name for name in sorted(names)):
                name, present = path.relative_to(self.run).as_posix(), stamp(path)
                if is_small(name) and name != STATE_FILE and present not in ("", self._stamps.get(name)):
                    with contextlib.ExitStack() as stack:
                        file = None if path.is_symlink() else _open(path, stack)
                        if file:
                            self._send_file(name, file)
                            self._stamps[name] = present

    def _send_file(self, name: str, file: BinaryIO) -> None:
        self.attempt.check()
        file.seek(0)
        self.store.put_file(name, file, self.note_progress)
        self.note_progress()


def _open(path: Path, stack: contextlib.ExitStack) -> BinaryIO | None:
    """Open a file; None if there is none. Open files outlive their removal."""
    try:
        return stack.enter_context(path.open("rb"))
    except FileNotFoundError:
        return None


def _open_folder(folder: Path, stack: contextlib.ExitStack) -> dict[str, BinaryIO]:
    """Open the files of a checkpoint, MANIFEST.json last; empty if one is missing."""
    paths = sorted(folder.iterdir(), reverse=True) if folder.is_dir() else []
    files = [_open(path, stack) for path in paths]
    if not all(files) or MANIFEST not in (path.name for path in paths):
        return {}
    return {path.name: file for path, file in zip(paths, files, strict=True) if file}


class _Abandoned(Exception):
    """The supervisor does not wait any longer."""


class CopyThread:
    """Thread that sends new checkpoints, and waits for a store that does not answer."""

    def __init__(self, copy: RunCopy) -> None:
        self.copy = copy
        copy.note_progress = self._note_progress
        self.address = copy.store.address
        self.events = EventLog(copy.run)
        self.outages = OutageLog(self.events, "copy", self.address)
        self.is_lost = self.is_complete = False
        self._progress_at = time.monotonic()
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
                if self.outages.problem or self.copy.find_unsent():
                    self._attempt()
            while not self._attempt() or self.copy.find_unsent():
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
        """Bring the copy up to date; returns whether that worked."""
        error: Failure | OSError | None = None
        try:
            self.copy.send()
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
        """Report what is missing in the store; returns the exit code of the run."""
        checkpoint = self.copy.find_unsent()
        reason = f" ({self.outages.problem})" if self.outages.problem else ""
        self.events.add("copy", f"{self.address} lacks {checkpoint.name if checkpoint else 'the last files'}{reason}")
        if code not in (0, Stopped.exit_code) or (code and not checkpoint):
            return code
        local = "the run is complete" if code == 0 else "the last checkpoint is complete"
        say(
            f"copy: incomplete, exit {StorageError.exit_code}; {local} in {self.copy.run}, and the same command sends the rest"
        )
        return StorageError.exit_code
