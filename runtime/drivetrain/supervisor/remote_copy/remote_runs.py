"""The copies of a job's runs in a store: which one a command continues, and that nobody else does."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

from drivetrain.errors import CheckpointError, SpecError
from drivetrain.job import Job
from drivetrain.storage.object_store import ObjectStore
from drivetrain.storage.remote_address import RemoteAddress, parse
from drivetrain.storage.store_errors import RemoteError
from drivetrain.storage.write_probe import check_writable
from drivetrain.supervisor import run_folder
from drivetrain.supervisor.remote_copy import copy_record, fetch_run, run_copy, run_files
from drivetrain.supervisor.remote_copy.copy_child import CopyChild, wait_for_previous
from drivetrain.supervisor.remote_copy.copy_record import CopyRecord
from drivetrain.supervisor.remote_copy.writer_lock import WriterLock
from drivetrain.system.console import say
from drivetrain.system.files import parse_row
from drivetrain.tracking.event_log import EventLog
from drivetrain.training.checkpoints.manifest import verify


class RemoteRuns:
    """The folder of a store in which the runs of a job are copied."""

    def __init__(self, runs: Path, job: Job, address: RemoteAddress) -> None:
        self.runs = runs
        self.job = job
        self.address = address
        self.writer = copy_record.new_id()
        self.names = _list_numbered(ObjectStore(address).folders(), job.name)
        """The runs of this name in the store, in order."""
        self.child: CopyChild | None = None
        self._locks: dict[str, WriterLock] = {}
        self._held = contextlib.ExitStack()

    def continue_last(self) -> None:
        """Bring the last run of the job here, if it is unfinished and the disk does not have it as far.

        Raises:
            RemoteError: if the store gives no answer.
            Busy: if somebody else trains it.
            CheckpointError: if the folder of its name is another run, or no checkpoint verifies.
        """
        local = run_folder.list_numbered(self.runs, self.job.name) if self.runs.is_dir() else []
        if not self.names or (local and _number(local[-1].name) > _number(self.names[-1])):
            return
        name = self.names[-1]
        store = ObjectStore(self.address / name)
        folder = self.runs / name
        if folder.is_dir():
            self._check_same(store, folder)
        if _status(store) == "done" and (not folder.is_dir() or run_folder.read_status(folder) == "done"):
            return
        with _keep_others_out(folder):
            self._acquire(name, folder)
            if _is_ahead(store, folder):
                say(f"copy: {store.address} is unfinished; downloading it")
                lines: list[str] = []
                try:
                    above = -1 if _status(store) == "done" else _newest_good(folder)
                    fetch_run.fetch_run(store, folder, lines.append, above)
                finally:
                    for line in lines:
                        say(f"copy: {line}")
                events = EventLog(folder)
                for line in lines:
                    events.store("copy", line)

    def begin(self, run: Path) -> None:
        """Take the right to write the copy of the run that was opened, and start to copy.

        Raises:
            RemoteError: if the store gives no answer.
            Busy: if somebody else writes it.
            CheckpointError: if the copy of this name is another run.
        """
        record = copy_record.of_folder(run)
        if run.name not in self._locks:
            self._acquire(run.name, run)
            # With the lock, and whatever was listed: another machine may have trained this run to its end meanwhile.
            self._check_same(ObjectStore(self.address / run.name), run)
        CopyRecord(record.run if record else copy_record.new_id(), str(self.address / run.name), self.writer).write(run)
        self._held.close()
        self._locks.pop(run.name)
        say(f"copy: {self.address / run.name}")
        self.child = CopyChild(run, self.address / run.name, self.job.checkpoint.keep)

    def finish(self, run: Path, code: int) -> int:
        """Wait for the rest of the copy; returns the exit code of the run, which may become 7 or 11.

        Args:
            run: the run folder; if it is gone, so is its copy.
            code: of the run without its copy.
        """
        child, self.child = self.child, None
        if child is None:
            return code
        if run.is_dir():
            return child.finish(code)
        child.cancel()
        with contextlib.suppress(RemoteError):
            run_copy.discard(ObjectStore(child.address))
        return code

    def leave(self) -> None:
        """Give everything back, if the run could not begin."""
        if self.child:
            self.child.finish(SpecError.exit_code)
            self.child = None
        self._held.close()
        for lock in self._locks.values():
            lock.release()

    def last_number(self) -> int:
        """The highest number that a run in the store has."""
        return _number(self.names[-1]) if self.names else 0

    def _acquire(self, name: str, folder: Path) -> None:
        """Take the lock; nobody else trains in the folder of this disk, so its last writer has ended or does soon."""
        if folder.is_dir():
            wait_for_previous(folder)
        record = copy_record.of_folder(folder)
        lock = WriterLock(ObjectStore(self.address / name), self.writer)
        lock.acquire(record.writer if record else None, say)
        self._locks[name] = lock
        self._held.enter_context(lock.beating())

    def _check_same(self, store: ObjectStore, folder: Path) -> None:
        stored, local = copy_record.of_store(store), copy_record.of_folder(folder)
        if stored and (local is None or local.run != stored.run):
            raise CheckpointError(
                f"{folder} and {store.address} are two different runs of the same name",
                "one run of each name, wherever it is",
                "give the job another name, or start a new run with --new",
            )


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
        Busy: if somebody else trains it.
        CheckpointError: if it cannot be continued.
    """
    if job.checkpoint.copy_to is None or not leads:
        yield None
        return
    try:
        check_writable(ObjectStore(parse(job.checkpoint.copy_to)))
        copies = RemoteRuns(runs, job, parse(job.checkpoint.copy_to))
    except RemoteError as error:
        raise _of_key(job, error) from None
    try:
        try:
            if not new:
                copies.continue_last()
        except RemoteError as error:
            raise _of_key(job, error) from None
        yield copies
    finally:
        copies.leave()


def _of_key(job: Job, error: RemoteError) -> RemoteError:
    location = job.document.place(("checkpoint", "copy_to"))
    without = "; `--set checkpoint.copy_to=null` trains without a copy"
    return RemoteError(
        error.trouble, f"{location}: checkpoint.copy_to: {error.given}", error.possible, error.action + without
    )


@contextlib.contextmanager
def _keep_others_out(folder: Path) -> Iterator[None]:
    """No other process trains in the folder, if there is one."""
    handle = run_folder.lock_folder(folder) if folder.is_dir() else None
    try:
        yield
    finally:
        if handle is not None:
            os.close(handle)


def _list_numbered(names: list[str], job: str) -> list[str]:
    pattern = re.compile(rf"{re.escape(job)}-\d{{3,}}")
    return sorted(filter(pattern.fullmatch, names), key=_number)


def _number(name: str) -> int:
    return int(name.rpartition("-")[2])


def _status(store: ObjectStore) -> object:
    """What the state of a run says; None if there is none, or it is damaged."""
    content = store.find(run_files.STATE)
    state = None if content is None else parse_row(content)
    return state.get("status") if state else None


def _newest_good(folder: Path) -> int:
    """The step of the newest checkpoint of a folder that matches its manifest; -1 if none does."""
    paths = sorted(folder.glob(f"{run_files.CHECKPOINTS}/step-*[0-9]"), key=run_copy.step_of, reverse=True)
    return next((run_copy.step_of(path) for path in paths if verify(path) is None), -1)


def _is_ahead(store: ObjectStore, folder: Path) -> bool:
    """Whether the store has more of a run than the folder."""
    names = [entry.name for entry in store.objects()]
    if not folder.is_dir():
        return copy_record.FILE in names
    stored_step = max(map(run_copy.step_of, fetch_run.list_committed(names)), default=-1)
    at_least_as_far = (
        path for path in folder.glob(f"{run_files.CHECKPOINTS}/step-*[0-9]") if run_copy.step_of(path) >= stored_step
    )
    return (stored_step >= 0 and not any(verify(path) is None for path in at_least_as_far)) or _status(store) == "done"
