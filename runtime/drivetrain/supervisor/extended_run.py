"""Opens the run folder that continues a finished run: a copy of its records and of its last checkpoint.

The copy is made beside the run folders and renamed when it is complete. From then on it is an unfinished run like any
other: the same command resumes it after a kill. The finished run is only read.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drivetrain.errors import CheckpointError, DataError, DrivetrainError, SpecError, StorageError
from drivetrain.job import Job
from drivetrain.job import extension as records
from drivetrain.job.extension import Extension
from drivetrain.plan import effective_plan
from drivetrain.plan.effective_plan import PlanRequest
from drivetrain.supervisor import finished_run, run_folder
from drivetrain.supervisor.finished_run import MAY_CHANGE, FinishedRun
from drivetrain.supervisor.run_folder import RECORDS, RunFolder
from drivetrain.supervisor.spec_difference import difference, load_stored_job, spec_text
from drivetrain.system.console import say
from drivetrain.system.files import (
    PRIVATE,
    make_folder,
    sha256,
    storage_error,
    sync_folder,
)
from drivetrain.system.run_files import JOB_FILE, RESULT_FILE, STATE_FILE, RunFiles, refuse_links
from drivetrain.tracking.event_log import EventLog
from drivetrain.training.checkpoints.manifest import MANIFEST, verify

REFUSALS = (SpecError.exit_code, DataError.exit_code, CheckpointError.exit_code)


@dataclass(frozen=True)
class ExtendRequest:
    """The options of `drivetrain train --extend`."""

    run: Path
    restart: bool = False
    """Whether the schedule starts again."""


def open_extended(
    runs: Path, job: Job, request: ExtendRequest, plan_request: PlanRequest, *, new: bool = False, after: int = 0
) -> RunFolder:
    """The run folder that continues a finished run: the unfinished one that was begun before, or a new one.

    Raises:
        SpecError: if the job leaves nothing to train, or its schedule has come to its end.
        CheckpointError: if the run cannot be continued, or another run of this name is unfinished.
        StorageError: if the folder cannot be written.
        Busy: if another process is extending a run of this name, or training in the unfinished one.
    """
    make_folder(runs)
    refuse_links(request.run)
    last = None if new else run_folder.find_unfinished(runs, job.name)
    if last and last.resolve() != request.run.resolve():
        return _resume(runs, last, job, request)
    done = finished_run.find(request.run, job)
    state = RunFiles(done.path).read_json(STATE_FILE)
    requested = plan_request.resume(done.path, state, effective_plan.plan_of(done.path), under_another_plan(request))
    extension = finished_run.decide(done, job, restart=request.restart)
    return _begin(runs, job, done, extension, {"plain": requested.plain, "plan": requested.plan}, after)


def under_another_plan(request: ExtendRequest) -> str:
    """What to do to train on under another plan; --new would copy the same run, with its plan, once more."""
    return f"start a new training from its model: model: {{from: {request.run}}}"


def _resume(runs: Path, last: Path, job: Job, request: ExtendRequest) -> RunFolder:
    """The unfinished run, if it continues the same one."""
    begun = records.read(last)
    if begun is None or begun.run != request.run.resolve().name:
        raise CheckpointError(
            f"{last} is unfinished" + (f" and continues {begun.run}" if begun else ""),
            "one unfinished run of a name",
            "the command without --extend resumes it; with --new in addition, another run begins",
        )
    if request.restart and begun.schedule != "restarts":
        raise CheckpointError(
            f"{last} is unfinished and was started without --restart-schedule",
            "one schedule for the whole run",
            "remove --restart-schedule to resume it, or begin another run with --new",
        )
    return run_folder.open_run(runs, job)


def _begin(
    runs: Path, job: Job, done: FinishedRun, extension: Extension, requested: Mapping[str, object], after: int
) -> RunFolder:
    """Copy the finished run into a new folder."""
    unfinished, path = runs / f".{job.name}.extension", run_folder.next_path(runs, job.name, after)
    make_folder(unfinished, PRIVATE)
    lock = run_folder.lock_folder(unfinished)
    try:
        for leftover in unfinished.iterdir():  # of a killed attempt
            if leftover.name != run_folder.LOCK:
                shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
        _copy(done, unfinished, finished_run.keep_watch(done, job, extension))
        records.write(unfinished, extension)
        RunFiles(unfinished).write_json(STATE_FILE, {"status": "stopped", "attempts": 0, **requested})
        events = EventLog(unfinished)
        for line in finished_run.describe(done, job, extension, path.name):
            events.add("extend", line, extension.step)
        RunFiles(unfinished).write_text(JOB_FILE, spec_text(job))
        unfinished.rename(path)
        sync_folder(runs)
    except (OSError, StorageError) as error:
        shutil.rmtree(unfinished, ignore_errors=True)  # it could fill the disk
        os.close(lock)
        raise storage_error(path, error) if isinstance(error, OSError) else error from None
    return RunFolder(path, True, lock, extends=str(done.path))


def _copy(done: FinishedRun, to: Path, watch: dict[str, Any]) -> None:
    for record_path in map(done.path.joinpath, RECORDS):
        if record_path.exists():
            _copy_files(record_path, to / record_path.name)
    best = done.checkpoint.with_name(f"best-{done.state['watch']['best']['step']}")
    if best.exists() and (wrong := verify(best)):
        say(f"checkpoint {best.name} of {done.path} is not taken over: {wrong}")
    elif best.exists():
        _copy_files(best, to / "checkpoints" / best.name)
    copy = to / "checkpoints" / done.checkpoint.name
    _copy_files(done.checkpoint, copy)
    if watch != done.state["watch"]:
        # As checkpoint.save writes it: not write_json, which would not keep infinity.
        RunFiles(copy).write_text("state.json", json.dumps({**done.state, "watch": watch}, indent=1) + "\n")
        manifest = RunFiles(copy).read_json(MANIFEST)
        entry = {"bytes": (copy / "state.json").stat().st_size, "sha256": sha256(copy / "state.json")}
        RunFiles(copy).write_json(MANIFEST, {**manifest, "files": {**manifest["files"], "state.json": entry}})
    for file in to.rglob("*"):
        _sync(file)


def _copy_files(source: Path, to: Path) -> None:
    """Copy a file or folder without its mode: a finished run may be read-only."""
    if not source.is_dir():
        shutil.copyfile(source, to)
        return
    to.mkdir(parents=True)
    for entry in source.iterdir():
        _copy_files(entry, to / entry.name)


def _sync(path: Path) -> None:
    """Make a file or folder survive a power loss."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def is_refused(run: RunFolder, code: int) -> bool:
    """Whether this run is a copy that the trainer refused before its first step."""
    extension = records.read(run.path) if run.extends else None
    if extension is None or code not in REFUSALS:
        return False
    trained = (int(checkpoint.name.rpartition("-")[2]) for checkpoint in run.path.glob("checkpoints/step-*"))
    return all(step <= extension.step for step in trained)


def discard(run: RunFolder) -> None:
    """Remove a copy that was refused; the finished run can then be extended again."""
    shutil.rmtree(run.path, ignore_errors=True)
    say(f"run {run.path} is removed, since nothing was trained in it; {run.extends} is as it was")


def offer(runs: Path, job: Job, command: str) -> str | None:
    """A line for a new run whose predecessor differs only in that it was shorter; None otherwise."""
    last = next(
        (p for p in reversed(run_folder.list_numbered(runs, job.name)) if run_folder.status(p) is not None), None
    )
    if last is None or run_folder.status(last) != "done" or not (last / JOB_FILE).is_file():
        return None
    try:
        before = None if difference(last, job, MAY_CHANGE) else load_stored_job(last, job)
    except (DrivetrainError, OSError):
        return None  # its spec cannot be read, so nothing is known about it
    if before is None or (job.train.epochs, job.train.steps) == (before.train.epochs, before.train.steps):
        return None
    done = RunFiles(last).read_json(RESULT_FILE)
    epochs = done.get("epochs") if isinstance(done, dict) else None
    stopped_early = before.train.steps is None and epochs != before.train.epochs
    if not isinstance(epochs, int) or stopped_early or job.train.epochs < epochs:
        return None
    ends = job.train.schedule == before.train.schedule and job.train.schedule.name in finished_run.FALLING_SCHEDULES
    command_text = f"{command} --extend {last}" + (" --restart-schedule" if ends else "")
    return f"{last} finished after {epochs} epoch{'s' * (epochs != 1)}; to continue it instead: {command_text}"
