"""Opens the run folder of a command; an extended run begins with a copy of the finished run's records and checkpoints.

The copy is made next to the run folders and renamed when it is complete. From then on it is an ordinary unfinished run whose
job has more epochs, so the same command resumes it after a kill. The finished run is only read.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from drivetrain.errors import CheckpointError, StorageError
from drivetrain.job import Job, extension
from drivetrain.job_spec.stored_spec import compare_stored_spec, store_spec
from drivetrain.plan import effective_plan
from drivetrain.plan.effective_plan import PlanRequest
from drivetrain.supervisor import run_folder
from drivetrain.supervisor.run_folder import MAY_CHANGE_ON_RESUME, RunFolder
from drivetrain.system import run_files
from drivetrain.system.files import USER_RWX, make_folder, storage_error, sync_file, sync_folder
from drivetrain.system.run_files import CHECKPOINTS, RunFiles
from drivetrain.system.run_records import RunResult, RunState
from drivetrain.tracking.event_log import EventLog

MAY_CHANGE_ON_EXTEND = (
    *(*MAY_CHANGE_ON_RESUME, "name", "train.epochs", "train.steps", "train.within"),
    *("train.schedule", "train.early_stopping", "train.optimizer.lr"),
)
"""Spec keys whose values may differ from the finished run."""


def open_run(
    runs: Path,
    job: Job,
    finished: Path | None,
    plan_request: PlanRequest,
    *,
    new: bool = False,
    after: int = 0,
) -> RunFolder:
    """Open the unfinished run of a command, or a new run, which may extend a finished run.

    Args:
        runs: parent of the run folders.
        job: current job.
        finished: folder of the run to extend; None for no extension.
        plan_request: plan that the command requests.
        new: whether to ignore an unfinished run.
        after: highest run number that is used in a store.

    Raises:
        CheckpointError: if the run cannot be extended, or another run of this name is unfinished.
        StorageError: if the folder cannot be written.
        Busy: if another process is extending a run of this name, or training in the unfinished run.
    """
    if finished is None:
        return run_folder.open_run(runs, job, new=new, after=after)
    make_folder(runs)
    run_files.refuse_links(finished)
    unfinished_run = run_folder.find_unfinished(runs, job.name)
    if unfinished_run and unfinished_run.resolve() != finished.resolve():
        is_copy = extension.read_name(unfinished_run) == finished.resolve().name
        if is_copy and extension.is_untouched(unfinished_run):
            # A copy that was refused or killed before its first checkpoint is replaced, perhaps with another job.
            os.close(run_folder.lock_folder(unfinished_run))
            shutil.rmtree(unfinished_run, ignore_errors=True)
        elif is_copy and not new:
            return run_folder.open_run(runs, job)
        elif not new:
            raise CheckpointError(
                extension.describe_unfinished(unfinished_run),
                "one unfinished run of a name",
                "resume it by the command without --extend, or add --new to begin another run",
            )
    _check_finished(finished, job)
    state, plan = RunState.read(finished), effective_plan.load_plan(finished)
    plan_request = plan_request.resume(finished, state, plan, advise_other_plan(finished))
    path = run_folder.next_path(runs, job.name, after)
    return _copy_run(finished, path, job, {"plain": plan_request.plain, "plan": plan_request.plan})


def advise_other_plan(finished: Path) -> str:
    """Return advice on how to train with another plan: a new extension would copy the plan of the run again."""
    return f"start a new training from its model: model: {{from: {finished}}}"


def _check_finished(finished: Path, job: Job) -> None:
    """Check that the run is finished and that the job only trains it longer; resuming the copy checks everything else.

    Raises:
        CheckpointError: if the run has not finished or was trained with another job.
    """
    status = RunState.read(finished).status
    checkpoints = run_files.list_checkpoints(finished / CHECKPOINTS)
    if status != "done" or not checkpoints:
        raise CheckpointError(
            f"{finished} is not a finished run with a checkpoint (status: {status or 'not recorded'})",
            "a run that `drivetrain train` has finished, with state.json and checkpoints/ in its folder",
            f"resume it without --extend; or start a new training from its model: model: {{from: {finished}}}",
        )
    comparison = compare_stored_spec(finished, job, MAY_CHANGE_ON_EXTEND, finished.name)
    if comparison.lines or comparison.stored_job is None:
        raise CheckpointError(
            f"{finished} was trained with another job file:\n" + "\n".join(f"    {line}" for line in comparison.lines),
            f"other values of {', '.join(MAY_CHANGE_ON_EXTEND)}",
            "undo the change, or train without --extend; model: {from: FOLDER} starts a new training from its model",
        )


def _copy_run(finished: Path, path: Path, job: Job, plan_state: dict[str, object]) -> RunFolder:
    """Copy the finished run to the new run folder `path`; `plan_state` has the entries of state.json about the plan."""
    temporary = path.parent / f".{job.name}.extension"
    make_folder(temporary, USER_RWX)
    lock = run_folder.lock_folder(temporary)
    try:
        # Remove files of a killed attempt.
        run_folder.remove_files(file for file in temporary.iterdir() if file.name != run_files.LOCK_FILE)
        for source in map(finished.joinpath, (*run_files.RECORDS, CHECKPOINTS)):
            if source.exists():
                _copy_files(source, temporary / source.name)
        for file in temporary.rglob("*"):
            sync_folder(file) if file.is_dir() else sync_file(file)
        step = run_files.parse_suffix(run_files.list_checkpoints(temporary / CHECKPOINTS)[-1])
        epochs = int(RunResult.read(finished).epochs or 0)
        record = {"run": finished.resolve().name, "step": step, "epoch": epochs}
        RunFiles(temporary).write_json(run_files.EXTENSION_FILE, record)
        RunFiles(temporary).write_json(run_files.STATE_FILE, {"status": "stopped", "attempts": 0, **plan_state})
        length = job.train.within or f"epoch {job.train.epochs}"
        EventLog(temporary).add(
            "extend",
            f"{path.name} continues {finished.name} after epoch {epochs} ({step} steps), up to {length}, "
            f"with the {job.train.schedule.name} schedule for this length",
            step,
        )
        store_spec(temporary, job)
        # Only a complete copy gets the name of a run folder.
        temporary.rename(path)
        sync_folder(path.parent)
    except (OSError, StorageError) as error:
        shutil.rmtree(temporary, ignore_errors=True)  # an incomplete copy could fill the disk
        os.close(lock)
        raise storage_error(path, error) if isinstance(error, OSError) else error from None
    return RunFolder(path, True, lock, extends=str(finished))


def _copy_files(source: Path, destination: Path) -> None:
    """Copy a file or folder without its mode: a finished run may be read-only."""
    if not source.is_dir():
        shutil.copyfile(source, destination)
        return
    destination.mkdir(parents=True)
    for entry in source.iterdir():
        _copy_files(entry, destination / entry.name)
