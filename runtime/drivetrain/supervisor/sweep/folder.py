"""The folder of a sweep, `runs/NAME-sweep-NNN/`: which one a command uses, and whether the sweep in it is the same, and what it
has found: its page, and the best trial's job as a command and as a file.
"""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from drivetrain.errors import CheckpointError, DrivetrainError
from drivetrain.job import Job, lower_is_better
from drivetrain.job.custom import list_user_functions
from drivetrain.job.hub_address import is_on_hub
from drivetrain.job.sweep import format_assignments
from drivetrain.job_spec.load_job import load
from drivetrain.job_spec.spec_source import SpecSource
from drivetrain.job_spec.stored_spec import compare_stored_spec, read_stored_spec, store_spec
from drivetrain.job_spec.yaml_file import dump, put_value
from drivetrain.report import swept
from drivetrain.report.swept import State, SweepResult, Trial
from drivetrain.storage.remote_address import is_remote
from drivetrain.supervisor import run_folder, same_conditions
from drivetrain.supervisor.run_folder import MAY_CHANGE_ON_RESUME
from drivetrain.supervisor.sweep.study import Study
from drivetrain.system.console import say
from drivetrain.system.files import USER_RWX, make_folder, write_text
from drivetrain.system.run_files import DATA_FILE, SWEEP_FILE, refuse_links
from drivetrain.system.run_records import RunResult, read_integer, read_mapping
from drivetrain.tuning import run_length

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

MAY_CHANGE_IN_SWEEP = (*(key for key in MAY_CHANGE_ON_RESUME if key != "sweep"), "sweep.trials", "sweep.max_time")
"""Spec keys that may change while a sweep is unfinished."""
BEST = "best.yaml"
_TRIAL_STATES: dict[str, State] = {"COMPLETE": "done", "PRUNED": "ended early", "FAIL": "failed"}


@dataclass
class SweepFolder:
    """The folder of a sweep, locked for this process and its children."""

    path: Path
    study: Study
    job: Job
    """The job, with the defaults that the sweep began with."""


@contextlib.contextmanager
def open_sweep(runs: Path, job: Job, metric: str, *, plain: bool, new: bool) -> Iterator[SweepFolder]:
    """A block with the last sweep of this job if it is the same one, or a new one with the next number.

    Raises:
        StorageError: if the folder cannot be written.
        Busy: if another process is at work in it.
        CheckpointError: if the last one is unfinished and had another spec, or its journal is damaged.
    """
    make_folder(runs)
    name = f"{job.name}-sweep"
    last = next(reversed(run_folder.list_numbered(runs, name)), None)
    if last and not new:
        refuse_links(last)
        with _hold_lock(last):
            if same_sweep := _open_same_sweep(last, job, metric, plain):
                yield same_sweep
                return
    path = run_folder.next_path(runs, name)
    make_folder(path, USER_RWX)
    with _hold_lock(path):
        store_spec(path, job, SWEEP_FILE)
        study = Study(path, job, metric)
        study.setting("plain", plain)
        study.setting("processes", same_conditions.count_processes(job, path))
        yield SweepFolder(path, study, job)


@contextlib.contextmanager
def _hold_lock(path: Path) -> Iterator[None]:
    lock = run_folder.lock_folder(path)
    try:
        yield
    finally:
        os.close(lock)


def _open_same_sweep(path: Path, job: Job, metric: str, plain: bool) -> SweepFolder | None:
    """Open a sweep that this command continues; None if it is finished and was another one.

    Raises:
        CheckpointError: if it is unfinished and was another one.
    """
    # There is no file if it was killed before it was written.
    trial_count = read_integer(read_mapping(read_stored_spec(path, SWEEP_FILE).data, "sweep"), "trials") or 0
    job, lines, _ = compare_stored_spec(path, job, MAY_CHANGE_IN_SWEEP, "the sweep so far", SWEEP_FILE)
    study = Study(path, job, metric)
    before = study.setting("plain", plain)
    if before != plain:
        lines.append("it was started " + ("with --plain" if before else "without --plain"))
    processes = same_conditions.count_processes(job, path)
    recorded_processes = study.setting("processes", processes)
    if recorded_processes != processes:
        lines.append(f"it was started with {recorded_processes} processes for each trial, now {processes}")
    if file := _find_changed_file(path, study, job):
        lines.append(f"{file} has other content, or is not there any more")
    if not lines:
        store_spec(path, job, SWEEP_FILE)
        return SweepFolder(path, study, job)
    if len(study.finished()) < trial_count:
        raise CheckpointError(
            f"{path} is unfinished, and this has changed since it started:\n"
            + "\n".join(f"    {line}" for line in lines),
            "what the sweep was started with; sweep.trials and sweep.max_time may change",
            "undo the change, or begin a new sweep with --new",
        )
    say(f"{path} is finished, and job, data or code have changed since; a new sweep begins")
    return None


def trial_folder(sweep: Path, number: int) -> Path | None:
    """The run folder of a trial, if it has one."""
    return next(reversed(run_folder.list_numbered(sweep, f"trial{number}")), None)


def trial_folders(sweep: Path, count: int) -> Iterator[Path]:
    """The run folders of the first trials, of those that have one."""
    return (run for number in range(count) if (run := trial_folder(sweep, number)))


def _find_changed_file(path: Path, study: Study, job: Job) -> str:
    """A file of data or code that has changed since the last trial that was trained; empty if there is none."""
    keys = [parameter.key for parameter in job.parameters]
    runs = (trial_folder(path, trial.number) for trial in reversed(study.trials()))
    last = next((run for run in runs if run and (run / DATA_FILE).exists()), None)
    return same_conditions.find_changed_file(last, job, keys) if last else ""


def write_result(
    sweep_folder: SweepFolder, source: SpecSource, assignments: Sequence[str], job: Job, metric: str
) -> SweepResult:
    """Write the page of the trials so far and the best one's job file; returns what is on the page.

    Args:
        assignments: values over it.
        job: the job with its sweep.
        metric: that decides.

    Raises:
        StorageError: if the folder cannot be written.
    """
    assert job.sweep is not None
    trials = tuple(_describe_trial(sweep_folder, trial) for trial in sweep_folder.study.finished())
    result = SweepResult(job.name, metric, lower_is_better(metric), job.parameters, trials, job.sweep.trials)
    if best := result.best:
        changes = [*assignments, *format_assignments(best.values)]
        best_job = replace(source, assignments=[*changes, "sweep=null"]).load()
        # What a trial has measured is written down, so that the best one is trained again as it was.
        changes += run_length.pin_measured(best_job, trial_folders(sweep_folder.path, len(trials)))
        options = [word for assignment in changes for word in ("--set", assignment)]
        command = shlex.join(["drivetrain", "train", str(source.spec), *options])
        best_spec = replace(source, assignments=[*changes, "sweep=null"]).load()
        result = replace(result, command=command, file=_write_best(sweep_folder.path / BEST, best_spec, best.number))
    swept.write(sweep_folder.path, result)
    return result


def _describe_trial(sweep_folder: SweepFolder, trial: FrozenTrial) -> Trial:
    run = trial_folder(sweep_folder.path, trial.number)
    state = _TRIAL_STATES[trial.state.name]
    epochs = len(trial.intermediate_values) or None
    return Trial(
        trial.number,
        state,
        trial.value if state != "failed" else None,
        sweep_folder.study.values(trial),
        run.name if run else "",
        epochs,
        RunResult.read(run).seconds if run and state == "done" else None,
        str(trial.user_attrs.get("reason", "")),
    )


def _write_best(path: Path, best: Job, number: int) -> str:
    """Write the job of the best trial; returns the path, or nothing if no file can stand there.

    Code of the user is imported from the folder of the job file alone, so such a job has no second place.
    """
    if list(list_user_functions(best)):
        return ""
    document = best.document
    for key, text in (*best.data_paths(), *best.model_paths()):
        resolved = best.resolve(text)
        elsewhere = is_on_hub(text) or is_remote(text) or Path(os.path.expanduser(text)).is_absolute()
        if not elsewhere and resolved.exists():
            put_value(document, key, os.path.relpath(os.path.abspath(resolved), os.path.abspath(path.parent)), "")
    del document.data["sweep"]
    write_text(path, f"# Trial {number} of the sweep in this folder, the best one.\n{dump(document.data)}")
    try:
        load(path)
    except DrivetrainError:
        path.unlink()
        return ""
    return str(path)
