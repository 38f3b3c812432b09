"""The copies of a job's runs in a store: fetches the last run if it is unfinished, and copies the current one."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from drivetrain.errors import SpecError
from drivetrain.job import Job
from drivetrain.storage.object_store import ObjectStore, check_writable
from drivetrain.storage.remote_address import RemoteAddress, parse
from drivetrain.storage.store_errors import RemoteError
from drivetrain.supervisor import run_folder
from drivetrain.supervisor.remote_copy.run_copy import (
    PATIENCE,
    PLAIN_NAME,
    Attempt,
    CopyThread,
    RunCopy,
    find_whole,
    is_small,
    list_attempts,
    list_names,
)
from drivetrain.system.console import say
from drivetrain.system.files import USER_RWX, blame_storage, make_folder, parse_row, sync_folder
from drivetrain.system.run_files import CHECKPOINTS, STATE_FILE, RunFiles, list_checkpoints, parse_suffix
from drivetrain.system.run_records import RunState
from drivetrain.system.units import format_bytes
from drivetrain.tracking.event_log import EventLog
from drivetrain.training.checkpoints.manifest import all_damaged_error, describe_damaged, find_best_step, verify


class RemoteRuns:
    """The folder in a store with the copies of a job's runs."""

    def __init__(self, runs: Path, job: Job, address: RemoteAddress) -> None:
        self.runs, self.job, self.address = runs, job, address
        self.attempts: dict[str, Attempt] = {}
        """Attempts by name of the run."""
        self.names = run_folder.sort_numbered(ObjectStore(address).folders(), job.name)
        """Names of the job's runs in the store, by number."""
        self.highest_number = parse_suffix(self.names[-1]) if self.names else 0
        self.thread: CopyThread | None = None

    def fetch_last(self, *, done: bool) -> None:
        """Download the last run of the job if it is unfinished and its copy is ahead of the local run folder.

        Args:
            done: whether a finished run is also downloaded if there is no local run folder.

        Raises:
            RemoteError: if the store does not answer.
            CheckpointError: if the copy belongs to another run, or if no checkpoint is intact.
        """
        local_runs = run_folder.list_numbered(self.runs, self.job.name) if self.runs.is_dir() else []
        if not self.names or (local_runs and parse_suffix(local_runs[-1].name) > self.highest_number):
            return  # there is no copy, or a newer run is here
        folder = self.runs / self.names[-1]
        store = ObjectStore(self.address / folder.name)
        is_local = folder.is_dir()
        is_done = RunState(parse_row(store.find(STATE_FILE) or b"{}") or {}).status == "done"
        if not list_attempts(store) or (is_done and (RunState.read(folder).status == "done" if is_local else not done)):
            return
        with contextlib.ExitStack() as stack:
            if is_local:
                # The lock fails if another process trains in the folder.
                stack.callback(os.close, run_folder.lock_folder(folder))
            attempt = self._begin(folder)
            paths = [] if is_done else reversed(list_checkpoints(folder / CHECKPOINTS))
            local_step = next((parse_suffix(path) for path in paths if verify(path) is None), -1)
            copied_step = max(map(parse_suffix, find_whole(list_names(store), "step")), default=-1)
            if is_done or not is_local or copied_step > local_step:
                say(f"copy: {store.address} is {'done' if is_done else 'unfinished'}; downloading it")
                for line in fetch_run(store, folder, local_step):
                    EventLog(folder).store("copy", line)
                attempt.note_in(folder)

    def start_copying(self, run: Path) -> None:
        """Begin an attempt to copy a run folder, unless an attempt has fetched it, and start the thread that copies it.

        Raises:
            RemoteError: if the store does not answer.
            CheckpointError: if the copy belongs to another run.
        """
        attempt = self._begin(run)
        attempt.note_in(run)  # a run that begins again in its folder has no key
        say(f"copy: {attempt.store.address}")
        self.thread = CopyThread(RunCopy(attempt, run, self.job.checkpoint.keep))

    def _begin(self, run: Path) -> Attempt:
        if run.name not in self.attempts:
            self.attempts[run.name] = Attempt(ObjectStore(self.address / run.name, PATIENCE), run)
        return self.attempts[run.name]

    def finish(self, run: Path, code: int) -> int:
        """Wait until the copy is complete; returns the exit code of the command: `code`, or 7 or 11 if copying failed.

        Args:
            run: run folder; if it was removed, its copy is removed too.
        """
        thread, self.thread = self.thread, None
        if thread is None or run.is_dir():
            return thread.finish(code) if thread else code
        thread.cancel()
        with contextlib.suppress(RemoteError):
            store = ObjectStore(thread.address)
            store.delete([entry.name for entry in store.objects()])
        return code

    def release(self) -> None:
        """Stop copying if the run could not start or finish."""
        if self.thread:
            self.thread.finish(SpecError.exit_code)


@contextlib.contextmanager
def open_runs(
    runs: Path, job: Job, *, new: bool, is_leader: bool, fetch_done: bool = False
) -> Iterator[RemoteRuns | None]:
    """Open the copies of this job's runs, and fetch an unfinished run; None if nothing is copied.

    Args:
        runs: parent of the run folders.
        new: whether a new run starts even if there is an unfinished run.
        fetch_done: whether a finished last run is fetched too.
        is_leader: whether this process writes the run folder; other processes copy nothing.

    Raises:
        RemoteError: if the store does not answer, so it is unknown whether there is a run to continue.
        CheckpointError: as in `RemoteRuns.fetch_last`.
    """
    if job.checkpoint.copy_to is None or not is_leader:
        yield None
        return
    address = parse(job.checkpoint.copy_to)
    with contextlib.ExitStack() as stack:
        try:
            check_writable(ObjectStore(address))
            copies = RemoteRuns(runs, job, address)
            stack.callback(copies.release)
            if not new:
                copies.fetch_last(done=fetch_done)
        except RemoteError as error:
            description = f"{job.document.place(('checkpoint', 'copy_to'))}: checkpoint.copy_to: {error.given}"
            action = f"{error.action}; `--set checkpoint.copy_to=null` trains without a copy"
            raise RemoteError(error.trouble, description, error.possible, action) from None
        yield copies


def fetch_run(store: ObjectStore, final: Path, local_step: int = -1) -> list[str]:
    """Download a run, and replace its folder if the store has a newer checkpoint; returns the printed lines.

    Args:
        store: copy of the run.
        local_step: step of the newest good checkpoint in the folder; older checkpoints in the store are not used.

    Raises:
        RemoteError: if the store does not answer.
        StorageError: if the folder cannot be written.
        CheckpointError: if there are checkpoints and none verifies.
    """
    lines = list[str]()
    temporary, old = final.with_name(f".tmp-fetched-{final.name}"), final.with_name(f".tmp-old-{final.name}")

    def report(line: str) -> None:
        say(f"copy: {store.address}: {line}")
        lines.append(f"{store.address}: {line}")

    make_folder(final.parent)
    try:
        with blame_storage(final):
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir(USER_RWX)
            names = [entry.name for entry in store.objects()]
            name = _download_newest(store, names, temporary / CHECKPOINTS, report, local_step)
            if name is None and local_step >= 0:
                report(f"using step-{local_step}, which is on this disk")
                return lines
            for path in filter(is_small, names):
                store.get_file(path, temporary / path)
            size = sum(path.stat().st_size for path in temporary.rglob("*") if path.is_file())
            shutil.rmtree(old, ignore_errors=True)
            with contextlib.suppress(FileNotFoundError):
                final.rename(old)
            temporary.rename(final)
            sync_folder(final.parent)
            shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    report(f"{name or 'no checkpoint yet'}, {format_bytes(size)} downloaded to {final}")
    return lines


def _download_newest(
    store: ObjectStore, names: Sequence[str], folder: Path, report: Callable[[str], None], local_step: int
) -> str | None:
    """Download the newest checkpoint that verifies, and the best checkpoint that it names; returns its name."""
    damaged = list[str]()
    for stored in reversed(find_whole(names, "step")):
        if parse_suffix(stored) <= local_step:
            return None
        name = stored.partition("/")[2]
        mismatch = _download_folder(store, names, stored, folder / name)
        if mismatch:
            damaged.append(describe_damaged(name, mismatch))
            report(damaged[-1])
            continue
        best = f"best-{find_best_step(RunFiles(folder / name).read_object(STATE_FILE))}"
        folders = [path for path in find_whole(names, "best") if path.endswith(f"/{best}")]
        mismatch = _download_folder(store, names, folders[-1], folder / best) if folders else None
        if mismatch:
            report(f"checkpoint {best} is damaged: {mismatch}; it is not used")
        return name
    if damaged and local_step < 0:
        raise all_damaged_error(store.address, damaged)
    return None


def _download_folder(store: ObjectStore, names: Sequence[str], stored: str, folder: Path) -> str | None:
    """Download a checkpoint; returns its problem."""
    part = re.compile(f"{CHECKPOINTS}/{stored}/({PLAIN_NAME.pattern})")
    for match in filter(None, map(part.fullmatch, names)):
        store.get_file(match[0], folder / match[1])
    mismatch = verify(folder)
    if mismatch:
        shutil.rmtree(folder)
    return mismatch
