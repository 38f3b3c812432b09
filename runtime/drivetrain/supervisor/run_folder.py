"""The run folder `runs/<name>-<NNN>/`: which one a command uses, and the lock that lets only one process write to
it.
"""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drivetrain.errors import Busy, CheckpointError, DataError, SpecError, StorageError
from drivetrain.job import Job
from drivetrain.supervisor.spec_difference import difference, spec_text
from drivetrain.system import file_lock
from drivetrain.system.files import PRIVATE, make_folder, storage_error
from drivetrain.system.run_files import (
    HARDWARE_FILE,
    JOB_FILE,
    METRICS_FILE,
    PLAN_FILE,
    STATE_FILE,
    RunFiles,
    refuse_links,
)

RECORDS = (
    PLAN_FILE,
    "batch_size.json",
    "code.json",
    "objects.json",
    "data.json",
    "preprocessing.json",
    METRICS_FILE,
    "events.jsonl",
    "telemetry.jsonl",
    "progress.json",
    "tensorboard",
)
"""What the bits of a run depend on, and its curves so far: an extended run takes them over."""
# The state is removed after the records: as long as it is there, the next start finds that nothing was trained.
BEGUN = (
    "job",
    JOB_FILE,
    HARDWARE_FILE,
    *RECORDS,
    STATE_FILE,
    "ranks",
    "ranks.json",
    "report.html",
    "report.md",
    "report.json",
)
"""Files that a run writes before its first checkpoint."""
LOCK = ".lock"
HALF = re.compile(r"\.tmp-.+|\..+\.\d+")
"""Names of files that a kill can leave incomplete."""
LOCK_SECONDS = 1.5
"""Seconds to wait for the lock, since a killed process takes a moment to disappear."""
FOLLOWERS = "followers"
"""The folders of supervisors that do not lead, beside the run folders, which the leader alone numbers and writes."""


@dataclass
class RunFolder:
    """A run folder, locked for this process and its children."""

    path: Path
    resumes: bool
    lock: int
    """Open file that holds the lock; pass it to the trainer, so that the lock lives as long as any of the processes."""
    extends: str = ""
    """The finished run that it has just begun to continue; empty for every other start."""

    def state(self) -> dict[str, Any]:
        """The state that the supervisor wrote last."""
        return RunFiles(self.path).read_object(STATE_FILE)


def open_run(runs: Path, job: Job, *, new: bool = False, after: int = 0) -> RunFolder:
    """The unfinished run of this job's name, or a new one with the next number.

    Args:
        runs: parent of the run folders.
        job: the present spec.
        new: whether an unfinished run is left alone.
        after: the highest number that is taken elsewhere.

    Raises:
        StorageError: if the folder cannot be written.
        Busy: if another process is training in it.
        CheckpointError: if the unfinished run was started with another spec, or a link is in its folder.
    """
    make_folder(runs)
    last = None if new else find_unfinished(runs, job.name)
    if last:
        lock = lock_folder(last)
        if _is_untrained(last) or (not (last / "checkpoints").exists() and difference(last, job)):
            return _anew(last, job, lock)
        _same_spec(last, job)
        _sweep(last)
        return RunFolder(last, True, lock)
    path = next_path(runs, job.name, after)
    try:
        path.mkdir(PRIVATE)
        RunFiles(path).write_text(JOB_FILE, spec_text(job))
    except OSError as error:
        raise storage_error(path, error) from None
    return RunFolder(path, False, lock_folder(path))


def find_unfinished(runs: Path, name: str) -> Path | None:
    """The last run folder of a name, if its run has not finished.

    Raises:
        CheckpointError: if a link is in it.
    """
    last = next(reversed(list_numbered(runs, name)), None)
    if last is None or status(last) == "done":
        return None
    refuse_links(last)
    return last if _of_a_run(last) else None


def find_finished(runs: Path, job: Job) -> Path | None:
    """The last run folder of the job's name, if its run has finished and was trained with this spec."""
    last = next(reversed(list_numbered(runs, job.name)), None)
    done = last is not None and status(last) == "done" and (last / JOB_FILE).is_file()
    return last if last and done and not difference(last, job) else None


def status(path: Path) -> str | None:
    """The status of a run: running, done, stopped or failed; None if nothing recorded it."""
    state = RunFiles(path).read_json(STATE_FILE)
    return state.get("status") if isinstance(state, dict) else None


def next_path(runs: Path, name: str, after: int = 0) -> Path:
    """The path of the next run folder of a name; `after` is the highest number that is taken elsewhere.

    Raises:
        StorageError: if libraries that write weights cannot name the folder.
    """
    if any("\ud800" <= letter <= "\udfff" for letter in str(runs)):
        raise StorageError(
            f"{runs}: the name has bytes that are not UTF-8",
            "a folder whose name is UTF-8, without which weights cannot be written",
            "rename the folder, or choose another one with --runs DIR",
        )
    last = next(reversed(list_numbered(runs, name)), None)
    return runs / f"{name}-{max(after, _number(last) if last else 0) + 1:03}"


def list_numbered(runs: Path, name: str) -> list[Path]:
    """The run folders of a name, in order."""
    pattern = re.compile(rf"{re.escape(name)}-\d{{3,}}")
    return sorted((p for p in runs.iterdir() if p.is_dir() and pattern.fullmatch(p.name)), key=_number)


def _number(path: Path) -> int:
    return int(path.name.rpartition("-")[2])


def _anew(path: Path, job: Job, lock: int) -> RunFolder:
    """Reuse a folder in which nothing was trained yet, for a spec or data whose error was fixed.

    Files of the user stay.
    """
    try:
        for leftover in map(path.joinpath, BEGUN):
            if leftover.is_dir() and not leftover.is_symlink():
                shutil.rmtree(leftover)
            else:
                leftover.unlink(missing_ok=True)
        _sweep(path)
        RunFiles(path).write_text(JOB_FILE, spec_text(job))
    except OSError as error:
        raise storage_error(path, error) from None
    return RunFolder(path, False, lock)


def _of_a_run(path: Path) -> bool:
    """Whether a folder with the name of a run is a run, and not the user's; a run killed at its start is empty."""
    names = {entry.name for entry in path.iterdir() if not HALF.fullmatch(entry.name)}
    return not names or bool(names & {LOCK, JOB_FILE, STATE_FILE})


def _is_untrained(path: Path) -> bool:
    """Whether a run ended before its first step because of its spec or its data; there is nothing to resume."""
    code = RunFiles(path).read_object(STATE_FILE).get("exit_code")
    begun = any((path / name).exists() for name in ("checkpoints", METRICS_FILE))
    return code in (SpecError.exit_code, DataError.exit_code) and not begun


def _same_spec(path: Path, job: Job) -> None:
    lines = difference(path, job)
    if lines:
        raise CheckpointError(
            f"{path} is unfinished and was started with another job file:\n"
            + "\n".join(f"    {line}" for line in lines),
            "the job file that the run was started with",
            "undo the change, or start a new run with --new",
        )


def _sweep(path: Path) -> None:
    """Remove incomplete files of a killed process; we hold the lock, so no other process is writing."""
    for leftover in path.iterdir():
        if HALF.fullmatch(leftover.name):
            shutil.rmtree(leftover, ignore_errors=True) if leftover.is_dir() else leftover.unlink(missing_ok=True)


def lock_folder(path: Path) -> int:
    """Lock a run folder; returns the open file that holds the lock.

    Raises:
        StorageError: if the folder cannot be written.
        Busy: if another process holds the lock.
    """
    try:
        handle = file_lock.acquire(LOCK, LOCK_SECONDS, RunFiles(path).open_handle)
    except OSError as error:
        raise storage_error(path, error) from None
    if handle is None:
        raise Busy(
            f"{path}: another process is training in this folder",
            "one trainer per run folder",
            "wait for it, stop it, or start another run with --new",
        )
    return handle


def open_follower(runs: Path, job: Job, index: int) -> RunFolder:
    """The folder of supervisor `index`, locked and without what an earlier attempt left.

    Raises:
        StorageError: if it cannot be written.
        Busy: if another process has it.
    """
    path = runs / FOLLOWERS / f"{job.name}-{index}"
    make_folder(path, PRIVATE)
    lock = lock_folder(path)
    try:
        for leftover in path.iterdir():
            if leftover.is_dir() and not leftover.is_symlink():
                shutil.rmtree(leftover)
            elif leftover.name != LOCK:
                leftover.unlink()
        RunFiles(path).write_text(JOB_FILE, spec_text(job))
    except OSError as error:
        raise storage_error(path, error) from None
    return RunFolder(path, False, lock)
