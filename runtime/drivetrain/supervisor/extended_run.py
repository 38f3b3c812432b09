"""Opens the run folder of a command; that of a run which continues a finished one begins with a copy of its records and of
its last checkpoint.

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
from drivetrain.job_spec.stored_spec import compare_stored_spec, store_spec
from drivetrain.plan import effective_plan
from drivetrain.plan.effective_plan import PlanRequest
from drivetrain.supervisor import finished_run, run_folder
from drivetrain.supervisor.finished_run import MAY_CHANGE_ON_EXTEND, FinishedRun
from drivetrain.supervisor.run_folder import RunFolder
from drivetrain.system import run_files
from drivetrain.system.console import say
from drivetrain.system.files import USER_RWX, make_folder, storage_error, sync_file, sync_folder
from drivetrain.system.run_files import RunFiles
from drivetrain.system.run_records import RunResult, RunState
from drivetrain.tracking.event_log import EventLog
from drivetrain.training.checkpoints.manifest import MANIFEST, describe_file, find_best_step, verify

REFUSAL_EXIT_CODES = (SpecError.exit_code, DataError.exit_code, CheckpointError.exit_code)
"""Exit codes of a trainer that refuses a job, its data or a checkpoint."""


@dataclass(frozen=True)
class ExtendRequest:
    """The options of `drivetrain train --extend`."""

    run: Path
    restart: bool = False
    """Whether the learning rate schedule starts again."""


def open_run(
    runs: Path,
    job: Job,
    request: ExtendRequest | None,
    plan_request: PlanRequest,
    *,
    new: bool = False,
    after: int = 0,
) -> RunFolder:
    """Open the run folder that a command trains in: its unfinished run or a new one, which may continue a finished run.

    Args:
        runs: parent of the run folders.
        job: the present spec.
        request: the finished run, and whether its schedule restarts; None without one.
        plan_request: the plan that the command asks for.
        new: whether an unfinished run is left alone.
        after: the highest run number that is taken elsewhere.

    Raises:
        SpecError: if the job leaves nothing to train, or its schedule has ended.
        CheckpointError: if the run cannot be continued, or another run of this name is unfinished.
        StorageError: if the folder cannot be written.
        Busy: if another process is extending a run of this name, or training in the unfinished one.
    """
    if request is None:
        return run_folder.open_run(runs, job, new=new, after=after)
    make_folder(runs)
    run_files.refuse_links(request.run)
    unfinished_run = None if new else run_folder.find_unfinished(runs, job.name)
    if unfinished_run and unfinished_run.resolve() != request.run.resolve():
        return _resume_extension(runs, unfinished_run, job, request)
    finished = finished_run.load_finished_run(request.run, job)
    state, plan = RunState.read(finished.path), effective_plan.load_plan(finished.path)
    plan_request = plan_request.resume(finished.path, state, plan, advise_other_plan(request))
    extension = finished_run.plan_extension(finished, job, restart=request.restart)
    return _start_extension(runs, job, finished, extension, vars(plan_request), after)


def advise_other_plan(request: ExtendRequest) -> str:
    """Say how to train on under another plan; --new would copy the same run, with its plan, once more."""
    return f"start a new training from its model: model: {{from: {request.run}}}"


def _resume_extension(runs: Path, unfinished_run: Path, job: Job, request: ExtendRequest) -> RunFolder:
    """Open the unfinished run, if it continues the requested run and restarts the schedule as requested."""
    extension = records.read(unfinished_run)
    if extension is None or extension.run != request.run.resolve().name:
        raise CheckpointError(
            f"{unfinished_run} is unfinished" + (f" and continues {extension.run}" if extension else ""),
            "one unfinished run of a name",
            "the command without --extend resumes it; with --new in addition, another run begins",
        )
    if request.restart and extension.schedule != "restarts":
        raise CheckpointError(
            f"{unfinished_run} is unfinished and was started without --restart-schedule",
            "one schedule for the whole run",
            "remove --restart-schedule to resume it, or begin another run with --new",
        )
    return run_folder.open_run(runs, job)


def _start_extension(
    runs: Path, job: Job, finished: FinishedRun, extension: Extension, plan_state: Mapping[str, object], after: int
) -> RunFolder:
    """Copy the finished run into a new run folder; `plan_state` is what state.json says about the requested plan."""
    temporary, path = runs / f".{job.name}.extension", run_folder.next_path(runs, job.name, after)
    make_folder(temporary, USER_RWX)
    lock = run_folder.lock_folder(temporary)
    try:
        # Of a killed attempt.
        run_folder.remove_files(file for file in temporary.iterdir() if file.name != run_files.LOCK_FILE)
        _copy_run(finished, temporary, finished_run.select_watch_state(finished, job, extension))
        records.write(temporary, extension)
        RunFiles(temporary).write_json(run_files.STATE_FILE, {"status": "stopped", "attempts": 0, **plan_state})
        events = EventLog(temporary)
        for line in finished_run.describe_extension(finished, job, extension, path.name):
            events.add("extend", line, extension.step)
        store_spec(temporary, job)
        # Only a complete copy gets the name of a run folder.
        temporary.rename(path)
        sync_folder(runs)
    except (OSError, StorageError) as error:
        shutil.rmtree(temporary, ignore_errors=True)  # it could fill the disk
        os.close(lock)
        raise storage_error(path, error) if isinstance(error, OSError) else error from None
    return RunFolder(path, True, lock, extends=str(finished.path))


def _copy_run(finished: FinishedRun, destination: Path, watch: dict[str, Any]) -> None:
    """Copy the records, the best and the last checkpoint; the last one gets `watch` as the state of its best metric."""
    for record_path in map(finished.path.joinpath, run_files.RECORDS):
        if record_path.exists():
            _copy_files(record_path, destination / record_path.name)
    best = finished.checkpoint.with_name(f"best-{find_best_step(finished.state)}")
    if best.exists() and (problem := verify(best)):
        say(f"checkpoint {best.name} of {finished.path} is not taken over: {problem}")
    elif best.exists():
        _copy_files(best, destination / run_files.CHECKPOINTS / best.name)
    checkpoint = destination / run_files.CHECKPOINTS / finished.checkpoint.name
    _copy_files(finished.checkpoint, checkpoint)
    if watch != finished.state["watch"]:
        # As checkpoint.save writes it: not write_json, which would not keep infinity.
        RunFiles(checkpoint).write_text(
            run_files.STATE_FILE, json.dumps({**finished.state, "watch": watch}, indent=1) + "\n"
        )
        # The manifest lists size and digest of each file, so it must follow.
        manifest = RunFiles(checkpoint).read_object(MANIFEST)
        files = {**manifest["files"], run_files.STATE_FILE: describe_file(checkpoint / run_files.STATE_FILE)}
        RunFiles(checkpoint).write_json(MANIFEST, {**manifest, "files": files})
    for file in destination.rglob("*"):
        sync_folder(file) if file.is_dir() else sync_file(file)


def _copy_files(source: Path, destination: Path) -> None:
    """Copy a file or folder without its mode: a finished run may be read-only."""
    if not source.is_dir():
        shutil.copyfile(source, destination)
        return
    destination.mkdir(parents=True)
    for entry in source.iterdir():
        _copy_files(entry, destination / entry.name)


def is_refused(run: RunFolder, exit_code: int) -> bool:
    """Whether this run is a copy that the trainer refused before its first step; the exit code is the trainer's."""
    extension = records.read(run.path) if run.extends else None
    if extension is None or exit_code not in REFUSAL_EXIT_CODES:
        return False
    checkpoints = run_files.list_checkpoints(run.path / run_files.CHECKPOINTS)
    return all(run_files.parse_suffix(path) <= extension.step for path in checkpoints)


def discard(run: RunFolder) -> None:
    """Remove a copy that the trainer refused; the finished run can then be extended again."""
    shutil.rmtree(run.path, ignore_errors=True)
    say(f"run {run.path} is removed, since nothing was trained in it; {run.extends} is as it was")


def suggest_extension(runs: Path, job: Job, command: str) -> str | None:
    """Suggest to extend the last run with `command --extend`, if the new run differs only in length; None otherwise."""
    newest_first = reversed(run_folder.list_numbered(runs, job.name))
    # The new run has no recorded status yet, so it is passed over.
    last_run = next((run for run in newest_first if RunState.read(run).status is not None), None)
    if last_run is None or RunState.read(last_run).status != "done" or not (last_run / run_files.JOB_FILE).is_file():
        return None
    try:
        comparison = compare_stored_spec(last_run, job, MAY_CHANGE_ON_EXTEND)
    except (DrivetrainError, OSError):
        return None  # its spec cannot be read, so nothing is known about it
    job, last_job = comparison.job, comparison.stored_job
    if comparison.lines or last_job is None:
        return None
    if (job.train.epochs, job.train.steps) == (last_job.train.epochs, last_job.train.steps):
        return None
    epochs = RunResult.read(last_run).epochs
    stopped_early = last_job.train.steps is None and epochs != last_job.train.epochs
    if epochs is None or stopped_early or job.train.epochs < epochs:
        return None
    schedule = job.train.schedule
    needs_restart = schedule == last_job.train.schedule and schedule.name in finished_run.FALLING_SCHEDULES
    extend_command = f"{command} --extend {last_run}" + (" --restart-schedule" if needs_restart else "")
    unit = "epoch" if epochs == 1 else "epochs"
    return f"{last_run} finished after {epochs:g} {unit}; to continue it instead: {extend_command}"
