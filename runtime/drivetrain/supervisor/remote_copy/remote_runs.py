"""The copies of a job's runs in a store: which one a command continues, and from where."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

from drivetrain.errors import SpecError
from drivetrain.job import Job
from drivetrain.storage.object_store import ObjectStore
from drivetrain.storage.remote_address import RemoteAddress, parse
from drivetrain.storage.store_errors import RemoteError
from drivetrain.storage.write_probe import check_writable
from drivetrain.supervisor import run_folder
from drivetrain.supervisor.remote_copy import copy_thread, fetch_run, owner_file, run_files
from drivetrain.supervisor.remote_copy.copy_thread import CopyThread
from drivetrain.supervisor.remote_copy.owner_file import OwnerFile
from drivetrain.system.console import say
from drivetrain.tracking.event_log import EventLog
from drivetrain.training.checkpoints.manifest import verify


class RemoteRuns:
    """The folder of a store in which the runs of a job are copied."""

    def __init__(self, runs: Path, job: Job, address: RemoteAddress) -> None:
        self.runs = runs
        self.job = job
        self.address = address
        self.writer = owner_file.new_id()
        self.names = _list_numbered(ObjectStore(address).folders(), job.name)
        """The runs of this name in the store, in order."""
        self.thread: CopyThread | None = None
        self._owned: dict[str, OwnerFile] = {}
        """Of the copies that this process owns and does not write yet."""

    def continue_last(self) -> None:
        """Bring the last run of the job here, if it is unfinished and the disk does not have it as far.

        Raises:
            RemoteError: if the store gives no answer.
            Busy: if this disk has the run, and a start on another one owns the copy.
            CheckpointError: if the folder of its name is another run, or no checkpoint verifies.
        """
        local = run_folder.list_numbered(self.runs, self.job.name) if self.runs.is_dir() else []
        if not self.names or (local and _number(local[-1].name) > _number(self.names[-1])):
            return
        folder = self.runs / self.names[-1]
        file = OwnerFile(ObjectStore(self.address / folder.name), self.writer)
        if not file.read():
            return
        is_done = file.owner.status == "done"
        if is_done and (not folder.is_dir() or run_folder.read_status(folder) == "done"):
            return
        with contextlib.ExitStack() as stack:
            if folder.is_dir():  # no other process trains in it
                stack.callback(os.close, run_folder.lock_folder(folder))
            file.take(folder)
            self._owned[folder.name] = file
            local_step = -1 if is_done else _find_newest_good(folder)
            steps = [run_files.step_of(name) for name in file.owner.checkpoints if name.startswith("step-")]
            if is_done or not folder.is_dir() or max(steps, default=-1) > local_step:
                _download(file, folder, local_step)

    def begin(self, run: Path) -> None:
        """Own the copy of the run that was opened, and start to copy.

        Raises:
            RemoteError: if the store gives no answer.
            Busy: as `OwnerFile.take`.
            CheckpointError: if the copy of this name is another run.
        """
        file = self._owned.pop(run.name, None)
        if file is None:
            file = OwnerFile(ObjectStore(self.address / run.name), self.writer)
            file.take(run)
        file.store = ObjectStore(self.address / run.name, copy_thread.PATIENCE)
        say(f"copy: {file.store.address}")
        self.thread = CopyThread(run, file, self.job.checkpoint.keep)

    def finish(self, run: Path, code: int) -> int:
        """Wait for the rest of the copy; returns the exit code of the run, which may become 7 or 11.

        Args:
            run: the run folder; if it is gone, so is its copy.
            code: of the run without its copy.
        """
        thread, self.thread = self.thread, None
        if thread is None:
            return code
        if run.is_dir():
            return thread.finish(code)
        thread.cancel()
        with contextlib.suppress(RemoteError):
            store = ObjectStore(thread.address)
            store.delete([entry.name for entry in store.objects()])
        return code

    def leave(self) -> None:
        """Give everything back, if the run could not begin."""
        if self.thread:
            self.thread.finish(SpecError.exit_code)
            self.thread = None
        for file in self._owned.values():
            file.release()

    def last_number(self) -> int:
        """The highest number that a run in the store has."""
        return _number(self.names[-1]) if self.names else 0


@contextlib.contextmanager
def open_runs(runs: Path, job: Job, *, new: bool, leads: bool) -> Iterator[RemoteRuns | None]:
    """The copies of this job's runs, with the unfinished one brought here; None if this process copies nothing.

    Args:
        runs: parent of the run folders.
        job: the present spec.
        new: whether an unfinished run is left alone.
        leads: whether this process writes the run.

    Raises:
        RemoteError: if the store gives no answer: whether there is a run to continue is not known then.
        Busy, CheckpointError: as `RemoteRuns.continue_last`.
    """
    if job.checkpoint.copy_to is None or not leads:
        yield None
        return
    copies = None
    try:
        try:
            check_writable(ObjectStore(parse(job.checkpoint.copy_to)))
            copies = RemoteRuns(runs, job, parse(job.checkpoint.copy_to))
            if not new:
                copies.continue_last()
        except RemoteError as error:
            raise _add_location(job, error) from None
        yield copies
    finally:
        if copies:
            copies.leave()


def _add_location(job: Job, error: RemoteError) -> RemoteError:
    location = job.document.place(("checkpoint", "copy_to"))
    without = "; `--set checkpoint.copy_to=null` trains without a copy"
    return RemoteError(
        error.trouble, f"{location}: checkpoint.copy_to: {error.given}", error.possible, error.action + without
    )


def _download(file: OwnerFile, folder: Path, local_step: int) -> None:
    """Bring a run here; what was noticed is printed, and kept in its events."""
    say(f"copy: {file.store.address} is unfinished; downloading it")
    lines: list[str] = []

    def report(line: str) -> None:
        say(f"copy: {line}")
        lines.append(line)

    fetch_run.fetch_run(file, folder, report, local_step)
    for line in lines:
        EventLog(folder).store("copy", line)


def _list_numbered(names: list[str], job: str) -> list[str]:
    pattern = re.compile(rf"{re.escape(job)}-\d{{3,}}")
    return sorted(filter(pattern.fullmatch, names), key=_number)


def _number(name: str) -> int:
    return int(name.rpartition("-")[2])


def _find_newest_good(folder: Path) -> int:
    """The step of the newest checkpoint of a folder that matches its manifest; -1 if none does."""
    paths = sorted(folder.glob(f"{run_files.CHECKPOINTS}/step-*[0-9]"), key=run_files.step_of, reverse=True)
    return next((run_files.step_of(path) for path in paths if verify(path) is None), -1)
