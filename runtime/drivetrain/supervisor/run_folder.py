"""Opens the run folder `runs/<name>-<NNN>/` of a training, with a lock that admits only one process.

A run is resumed or extended only if its stored spec agrees with the current spec.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from drivetrain.errors import Busy, CheckpointError, DataError, SpecError
from drivetrain.job import Job, extension, hub_address
from drivetrain.job_spec.stored_spec import compare_stored_spec, read_stored_spec, store_spec
from drivetrain.system import file_lock, run_files
from drivetrain.system.console import say
from drivetrain.system.files import USER_RWX, blame_storage, check_utf8, make_folder
from drivetrain.system.run_files import RunFiles
from drivetrain.system.run_records import RunState, read_mapping

INCOMPLETE_NAME = re.compile(r"\.tmp-.+|\..+\.\d+")
"""Names of files that a kill can leave incomplete."""
LOCK_SECONDS = 1.5
"""Seconds to wait for the lock, because a killed process takes a moment to disappear."""
FOLLOWERS = "followers"
"""Parent of the folders of following supervisors; only the leader numbers and writes run folders."""


@dataclass
class RunFolder:
    """A run folder, locked for this process and its children."""

    path: Path
    resumes: bool
    """Whether an earlier process has trained in it."""
    lock: int
    """Open file that holds the lock; the trainer inherits it, so the lock lives as long as any of the processes."""
    extends: str = ""
    """Finished run that this start begins to extend; empty for all other starts."""


def open_run(runs: Path, job: Job, *, new: bool = False, after: int = 0) -> RunFolder:
    """Open the unfinished run of this job's name, or a new run with the next number.

    Args:
        runs: parent of the run folders.
        job: current job.
        new: whether to ignore an unfinished run.
        after: highest run number that is used in a store.

    Raises:
        StorageError: if the folder cannot be written.
        Busy: if another process is training in it.
        CheckpointError: if the unfinished run was started with another spec, or if its folder contains a link.
    """
    make_folder(runs)
    unfinished = None if new else find_unfinished(runs, job.name)
    if unfinished:
        lock = lock_folder(unfinished)
        if _begins_again(unfinished, job):
            return _restart_in_folder(unfinished, job, lock)
        lines = compare_stored_spec(unfinished, job, MAY_CHANGE_ON_RESUME).lines
        if lines:
            raise CheckpointError(
                f"{unfinished} is unfinished and was started with another job file:\n"
                + "\n".join(f"    {line}" for line in lines),
                "the job file that the run was started with",
                "undo the change, or start a new run with --new",
            )
        _remove_incomplete(unfinished)
        store_spec(unfinished, job)
        return RunFolder(unfinished, True, lock)
    path = next_path(runs, job.name, after)
    with blame_storage(path):
        path.mkdir(USER_RWX)
        store_spec(path, job)
    return RunFolder(path, False, lock_folder(path))


def find_unfinished(runs: Path, name: str) -> Path | None:
    """Find the last run folder of a name if its run is unfinished; raises CheckpointError if it contains a link."""
    last = next(reversed(list_numbered(runs, name)), None)
    if last is None or RunState.read(last).status == "done":
        return None
    run_files.refuse_links(last)
    # A folder with the name of a run may belong to the user; the folder of a run that was killed at its start is empty.
    names = {entry.name for entry in last.iterdir() if not INCOMPLETE_NAME.fullmatch(entry.name)}
    is_run = not names.isdisjoint((run_files.LOCK_FILE, run_files.JOB_FILE, run_files.STATE_FILE))
    return last if is_run or not names else None


def find_finished(runs: Path, job: Job) -> Path | None:
    """Find the last run folder of the job's name if its run is finished and was trained with this spec."""
    last = next(reversed(list_numbered(runs, job.name)), None) if runs.is_dir() else None
    if last is None or RunState.read(last).status != "done" or not (last / run_files.JOB_FILE).is_file():
        return None
    try:
        return None if compare_stored_spec(last, job, MAY_CHANGE_ON_RESUME).lines else last
    except CheckpointError as error:
        say(f"{last} is done, but is ignored, because its job cannot be read: {error.given}")
        return None


def next_path(runs: Path, name: str, after: int = 0) -> Path:
    """Return the path of the next run folder of a name; `after` is the highest number that is used in a store."""
    check_utf8(runs)
    last = next(reversed(list_numbered(runs, name)), None)
    return runs / f"{name}-{max(after, run_files.parse_suffix(last) if last else 0) + 1:03}"


def list_numbered(runs: Path, name: str) -> list[Path]:
    """List the run folders of a name by ascending number."""
    return [runs / folder for folder in sort_numbered((p.name for p in runs.iterdir() if p.is_dir()), name)]


def sort_numbered(folders: Iterable[str], name: str) -> list[str]:
    """Sort the folder names of a run's name by ascending number, without other folders."""
    pattern = re.compile(rf"{re.escape(name)}-\d{{3,}}")
    return sorted(filter(pattern.fullmatch, folders), key=run_files.parse_suffix)


def _restart_in_folder(path: Path, job: Job, lock: int) -> RunFolder:
    """Start from scratch in a folder without training, for example after an error in the spec or data.

    Files of the user are kept.
    """
    with blame_storage(path):
        if extension.is_untouched(path):
            remove_files([path / run_files.CHECKPOINTS])
        remove_files(map(path.joinpath, run_files.FILES_BEFORE_TRAINING))
        # Remove this file last: without it, the copy of a killed extension would count as a run with its own checkpoint.
        remove_files([path / run_files.EXTENSION_FILE])
        _remove_incomplete(path)
        store_spec(path, job)
    return RunFolder(path, False, lock)


def remove_files(paths: Iterable[Path]) -> None:
    """Remove files and folders if they exist."""
    for path in paths:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def _begins_again(path: Path, job: Job) -> bool:
    """Return whether a run begins again in its folder: it has not trained, or has no own checkpoint and its spec changed."""
    has_checkpoints = (path / run_files.CHECKPOINTS).exists() and not extension.is_untouched(path)
    return _is_untrained(path) or (
        not has_checkpoints and bool(compare_stored_spec(path, job, MAY_CHANGE_ON_RESUME).lines)
    )


def _is_untrained(path: Path) -> bool:
    """Return whether a run ended before its first step because of its spec or data, so there is nothing to resume."""
    exit_code = RunState.read(path).exit_code
    has_trained = any((path / name).exists() for name in (run_files.CHECKPOINTS, run_files.METRICS_FILE))
    return exit_code in (SpecError.exit_code, DataError.exit_code) and not has_trained


def _remove_incomplete(path: Path) -> None:
    """Remove incomplete files of a killed process; the lock guarantees that no other process is writing."""
    for leftover in path.iterdir():
        if INCOMPLETE_NAME.fullmatch(leftover.name):
            shutil.rmtree(leftover, ignore_errors=True) if leftover.is_dir() else leftover.unlink(missing_ok=True)


def lock_folder(path: Path) -> int:
    """Lock a run folder; returns the open file that holds the lock.

    Raises:
        StorageError: if the folder cannot be written.
        Busy: if another process holds the lock.
    """
    with blame_storage(path):
        handle = file_lock.acquire(run_files.LOCK_FILE, LOCK_SECONDS, RunFiles(path).open_handle)
    if handle is None:
        raise Busy(
            f"{path}: another process is training in this folder",
            "one trainer per run folder",
            "wait for it, stop it, or start another run with --new",
        )
    return handle


def open_follower(runs: Path, job: Job, index: int) -> RunFolder:
    """Lock the folder of the following supervisor `index`, and remove files of an earlier attempt.

    Raises:
        StorageError: if the folder cannot be written.
        Busy: if another process holds its lock.
    """
    path = runs / FOLLOWERS / f"{job.name}-{index}"
    make_folder(path, USER_RWX)
    lock = lock_folder(path)
    with blame_storage(path):
        remove_files(leftover for leftover in path.iterdir() if leftover.name != run_files.LOCK_FILE)
        store_spec(path, job)
    return RunFolder(path, False, lock)


def find_continued(runs: Path, name: str, extended: Path | None, *, new: bool) -> Path | None:
    """Find the run that a command continues: the unfinished run of a name, unless `new`, or the extended run."""
    unfinished = None if new or not runs.is_dir() else find_unfinished(runs, name)
    return unfinished or extended


def keep_defaults(run: Path, job: Job) -> Job:
    """Give keys that the user has not set the values of the continued run.

    Raises:
        CheckpointError: if the stored spec of the run cannot be read.
    """
    return job if _begins_again(run, job) else compare_stored_spec(run, job).job


def keep_revisions(run: Path, job: Job) -> list[str]:
    """List `key.path=value` for data at the commits of the continued run, not the current ones, and print them."""
    assignments = list(_assign_commits(run, job))
    if assignments:
        say(f"data: {run} continues with its original commit: {', '.join(assignments)}")
    return assignments


def _assign_commits(run: Path, job: Job) -> Iterator[str]:
    """Yield `key.path=value` for data that the spec names by a branch and the run used at another commit."""
    data = read_mapping(read_stored_spec(run).data, "data")
    for key, text in job.data_paths():
        block, stored_text = job.document.data.get(key[0]), data.get(key[-1])
        in_spec = hub_address.parse(str(block.get(key[-1]))) if isinstance(block, dict) else None
        stored = hub_address.parse(stored_text) if isinstance(stored_text, str) else None
        current = hub_address.parse(text)
        if not (in_spec and current and stored and stored.is_fixed) or in_spec.is_fixed:
            continue
        if current.name == stored.name and current.revision != stored.revision:
            yield f"{'.'.join(key)}={in_spec.at(stored.revision)}"


MAY_CHANGE_ON_RESUME = (
    "limits",
    "baselines",
    "checkpoint.every",
    "checkpoint.keep",
    "checkpoint.copy_to",
    "train.max_time",
    "optimize.loader_workers",
    "environment",
    "sweep",
    "track",
)
"""Spec keys that may change on a resume: they do not affect the choice of weights, or the training except for
rounding."""
