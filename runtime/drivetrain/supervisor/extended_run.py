"""Opens the run folder of a command; an extended run begins with a copy of the finished run's records and checkpoints.

The copy is made next to the run folders and renamed when it is complete. Then it is an unfinished run like any other,
whose job has more epochs: the same command resumes it after a kill. The finished run is only read.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from drivetrain.errors import CheckpointError, DataError, DrivetrainError, SpecError, StorageError
from drivetrain.job import Job
from drivetrain.job import extension as records
from drivetrain.job.extension import Extension
from drivetrain.job_spec.stored_spec import compare_stored_spec, store_spec
from drivetrain.plan import effective_plan
from drivetrain.plan.effective_plan import PlanRequest
from drivetrain.supervisor import run_folder
from drivetrain.supervisor.run_folder import MAY_CHANGE_ON_RESUME, RunFolder
from drivetrain.system import run_files
from drivetrain.system.console import say
from drivetrain.system.files import USER_RWX, make_folder, storage_error, sync_file, sync_folder
from drivetrain.system.run_files import CHECKPOINTS, RunFiles
from drivetrain.system.run_records import RunResult, RunState
from drivetrain.tracking.event_log import EventLog

REFUSAL_EXIT_CODES = (SpecError.exit_code, DataError.exit_code, CheckpointError.exit_code)
"""Exit codes of a trainer that has refused a job, its data or a checkpoint."""
LENGTH_KEYS = ("train.epochs", "train.steps", "train.within")
MAY_CHANGE_ON_EXTEND = (
    *(*MAY_CHANGE_ON_RESUME, *LENGTH_KEYS, "name"),
    *("train.schedule", "train.early_stopping", "train.optimizer.lr"),
)
"""Spec keys that may have other values than in the finished run."""


def open_run(
    runs: Path,
    job: Job,
    finished: Path | None,
    plan_request: PlanRequest,
    *,
    new: bool = False,
    after: int = 0,
) -> RunFolder:
    """Open the run folder of a command: its unfinished run, or a new run, which may extend a finished run.

    Args:
        runs: parent of the run folders.
        job: current job.
        finished: folder of the run to extend; None if there is none.
        plan_request: plan that the command requests.
        new: whether an unfinished run is ignored.
        after: highest run number that is used elsewhere.

    Raises:
        CheckpointError: if the run cannot be extended, or another run of this name is unfinished.
        StorageError: if the folder cannot be written.
        Busy: if another process is extending a run of this name, or training in the unfinished run.
    """
    if finished is None:
        return run_folder.open_run(runs, job, new=new, after=after)
    make_folder(runs)
    run_files.refuse_links(finished)
    unfinished_run = None if new else run_folder.find_unfinished(runs, job.name)
    if unfinished_run and unfinished_run.resolve() != finished.resolve():
        if records.read_name(unfinished_run) == finished.resolve().name:
            return run_folder.open_run(runs, job)
        raise CheckpointError(
            records.describe_unfinished(unfinished_run),
            "one unfinished run of a name",
            "the command without --extend resumes it; with --new in addition, another run begins",
        )
    _check_finished(finished, job)
    state, plan = RunState.read(finished), effective_plan.load_plan(finished)
    plan_request = plan_request.resume(finished, state, plan, advise_other_plan(finished))
    path = run_folder.next_path(runs, job.name, after)
    return _copy_run(finished, path, job, {"plain": plan_request.plain, "plan": plan_request.plan})


def advise_other_plan(finished: Path) -> str:
    """Return advice on how to continue with another plan; --new would copy the same run with its plan again."""
    return f"start a new training from its model: model: {{from: {finished}}}"


def _check_finished(finished: Path, job: Job) -> None:
    """Check that the job trains the finished run longer; resuming the copy checks everything else.

    Raises:
        CheckpointError: if the run has not finished or was trained with another job.
        SpecError: if its outputs were solved, so more epochs change nothing.
    """
    status = RunState.read(finished).status
    checkpoints = run_files.list_checkpoints(finished / CHECKPOINTS)
    if status != "done" or not checkpoints:
        raise CheckpointError(
            f"{finished} is no finished run with a checkpoint (status: {status or 'not recorded'})",
            "a run that `drivetrain train` has finished: its folder holds state.json and checkpoints/",
            f"resume it without --extend; or start a new training from its model: model: {{from: {finished}}}",
        )
    newest = RunFiles(finished).read_object(f"{CHECKPOINTS}/{checkpoints[-1].name}/{run_files.STATE_FILE}")
    if newest.get("counters", {}).get("solved") and not getattr(getattr(job, "model", None), "unfreeze", ()):
        raise job.spec_error(
            ("train", "epochs"),
            f"more of them change nothing: the outputs of {finished} are solved, and nothing else is trained",
            "a run that trains by steps",
            f"start from its model, model: {{from: {finished}}}, with train.solve_heads: false or less frozen",
        )
    comparison = compare_stored_spec(finished, job, MAY_CHANGE_ON_EXTEND, finished.name)
    if comparison.lines or comparison.stored_job is None:
        raise CheckpointError(
            f"{finished} was trained with another job file:\n" + "\n".join(f"    {line}" for line in comparison.lines),
            f"other values of {', '.join(MAY_CHANGE_ON_EXTEND)}",
            "undo the change, or train without --extend; model: {from: FOLDER} starts a new training from its model",
        )


def _copy_run(finished: Path, path: Path, job: Job, plan_state: dict[str, object]) -> RunFolder:
    """Copy the finished run to the new run folder `path`; `plan_state` is the requested plan, for state.json."""
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
        records.write(temporary, Extension(finished.resolve().name, step, epochs))
        RunFiles(temporary).write_json(run_files.STATE_FILE, {"status": "stopped", "attempts": 0, **plan_state})
        length = job.train.within or f"epoch {job.train.epochs}"
        EventLog(temporary).add(
            "extend",
            f"{path.name} continues {finished.name} after {epochs} epochs ({step} steps), up to {length}, "
            f"with the {job.train.schedule.name} schedule of that length",
            step,
        )
        store_spec(temporary, job)
        # Only a complete copy gets the name of a run folder.
        temporary.rename(path)
        sync_folder(path.parent)
    except (OSError, StorageError) as error:
        shutil.rmtree(temporary, ignore_errors=True)  # it could fill the disk
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


def is_refused(run: RunFolder, exit_code: int) -> bool:
    """Return whether this run is a copy that the trainer refused with `exit_code` before its first step."""
    if not run.extends or exit_code not in REFUSAL_EXIT_CODES:
        return False
    copied, original = (run_files.list_checkpoints(Path(path) / CHECKPOINTS) for path in (run.path, run.extends))
    return [path.name for path in copied] == [path.name for path in original]


def discard(run: RunFolder) -> None:
    """Remove a copy that the trainer refused; the finished run can then be extended again."""
    shutil.rmtree(run.path, ignore_errors=True)
    say(f"run {run.path} is removed, since nothing was trained in it; {run.extends} is as it was")


def suggest_extension(runs: Path, job: Job, command: str) -> str | None:
    """Suggest to extend the last run with `command --extend` if the new run is only longer; None otherwise."""
    newest_first = reversed(run_folder.list_numbered(runs, job.name))
    # The new run has no recorded status yet, so it is skipped.
    last_run = next((run for run in newest_first if RunState.read(run).status is not None), None)
    epochs = RunResult.read(last_run).epochs if last_run and RunState.read(last_run).status == "done" else None
    if last_run is None or epochs is None or job.train.epochs <= epochs:
        return None
    try:
        comparison = compare_stored_spec(last_run, job, (*MAY_CHANGE_ON_RESUME, *LENGTH_KEYS))
    except (DrivetrainError, OSError):
        return None  # its spec cannot be read
    last_job = comparison.stored_job
    # A run that ended early would end early again.
    if comparison.lines or last_job is None or (last_job.train.steps is None and epochs != last_job.train.epochs):
        return None
    unit = "epoch" if epochs == 1 else "epochs"
    return f"{last_run} finished after {epochs:g} {unit}; to continue it instead: {command} --extend {last_run}"
