"""Opens the folder of a sweep, with its spec and Optuna's journal, and decides whether a command continues it."""

from __future__ import annotations

import contextlib
import json
import os
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock
from optuna.study import Study
from optuna.trial import BaseTrial, FrozenTrial

from drivetrain.errors import CheckpointError, SpecError
from drivetrain.job import Job, lower_is_better
from drivetrain.job.sweep import Parameter, format_assignments
from drivetrain.job_spec.spec_source import SpecSource
from drivetrain.job_spec.stored_spec import compare_stored_spec, read_stored_spec, store_spec
from drivetrain.supervisor import run_folder, same_conditions
from drivetrain.supervisor.run_folder import MAY_CHANGE_ON_RESUME
from drivetrain.system.console import say
from drivetrain.system.files import USER_RWX, make_folder, storage_error
from drivetrain.system.run_files import DATA_FILE, SWEEP_FILE, refuse_links
from drivetrain.system.run_records import read_integer, read_mapping

JOURNAL = "journal.jsonl"
MAY_CHANGE_IN_SWEEP = (*(key for key in MAY_CHANGE_ON_RESUME if key != "sweep"), "sweep.trials", "sweep.max_time")
"""Spec keys that may change while a sweep is unfinished."""
MIN_FINISHED_TRIALS = 5
"""Number of finished trials before a trial may be ended early."""
UNPRUNED_SHARE = 0.25
"""Share of the epochs before a trial may be ended: while the learning rate rises, the slowest trial can be the best."""
LOCK_SECONDS = 3
"""Largest age in seconds of a valid lock of the journal; an older lock belongs to a killed process."""


@dataclass(frozen=True)
class SweepFolder:
    """The folder of a sweep, locked for this process and its children."""

    path: Path
    study: Study
    job: Job
    """The job, with the defaults that the sweep began with."""

    def find_run(self, number: int) -> Path | None:
        """Find the run folder of a trial; None if it has none."""
        return next(reversed(run_folder.list_numbered(self.path, f"trial{number}")), None)

    def list_runs(self) -> list[Path]:
        """List the run folders of the trials that have one."""
        return [run for trial in self.study.trials if (run := self.find_run(trial.number))]

    def list_finished(self) -> list[FrozenTrial]:
        """List the trials that are done, ended early or failed."""
        return [trial for trial in self.study.trials if trial.state.is_finished()]


@contextlib.contextmanager
def open_folder(runs: Path, job: Job, *, plain: bool, new: bool) -> Iterator[SweepFolder]:
    """Open the latest sweep if its settings match, else start a new one.

    Raises:
        StorageError: if the folder cannot be written.
        Busy: if another process works in it.
        CheckpointError: if the latest sweep is unfinished and its settings differ, or its journal is damaged.
    """
    make_folder(runs)
    name = f"{job.name}-sweep"
    conditions = {"plain": plain, "processes": same_conditions.count_processes(job, runs)}
    latest = next(reversed(run_folder.list_numbered(runs, name)), None)
    if latest and not new:
        refuse_links(latest)
        with contextlib.closing(os.fdopen(run_folder.lock_folder(latest))):
            if folder := _open_same_sweep(latest, job, conditions):
                yield folder
                return
    path = run_folder.next_path(runs, name)
    make_folder(path, USER_RWX)
    with contextlib.closing(os.fdopen(run_folder.lock_folder(path))):
        store_spec(path, job, SWEEP_FILE)
        study = open_study(path, job)
        study.set_user_attr("conditions", conditions)
        yield SweepFolder(path, study, job)


def _open_same_sweep(path: Path, job: Job, conditions: Mapping[str, object]) -> SweepFolder | None:
    """Open a sweep that this command continues; None if the sweep is finished and its settings differ.

    Raises:
        CheckpointError: if the sweep is unfinished and its settings differ.
    """
    # The file is missing if the sweep was killed before writing it.
    trial_count = read_integer(read_mapping(read_stored_spec(path, SWEEP_FILE).data, "sweep"), "trials") or 0
    job, lines, _ = compare_stored_spec(path, job, MAY_CHANGE_IN_SWEEP, "the sweep so far", SWEEP_FILE)
    folder = SweepFolder(path, open_study(path, job), job)
    before = folder.study.user_attrs.get("conditions", conditions)
    if before != conditions:
        lines.append(f"it was started {_describe(before)}, now {_describe(conditions)}")
    keys = [parameter.key for parameter in job.parameters]
    latest_run = next((run for run in reversed(folder.list_runs()) if (run / DATA_FILE).exists()), None)
    if latest_run and (file := same_conditions.find_changed_file(latest_run, job, keys)):
        lines.append(f"{file} was changed or deleted")
    if not lines:
        store_spec(path, job, SWEEP_FILE)
        folder.study.set_user_attr("conditions", before)
        return folder
    if len(folder.list_finished()) < trial_count:
        raise CheckpointError(
            f"{path} is unfinished, and this has changed since it started:\n"
            + "\n".join(f"    {line}" for line in lines),
            "the settings that the sweep was started with; sweep.trials and sweep.max_time may change",
            "undo the change, or begin a new sweep with --new",
        )
    say(f"{path} is finished, and job, data or code have changed since; a new sweep begins")
    return None


def _describe(conditions: Mapping[str, object]) -> str:
    return (
        f"with{'' if conditions['plain'] else 'out'} --plain and with {conditions['processes']} processes for a trial"
    )


def open_study(path: Path, job: Job) -> Study:
    """Open or begin the journal of a sweep; the caller holds the lock of the folder.

    Raises:
        CheckpointError: if the journal is damaged.
        StorageError: if the journal cannot be written.
    """
    assert job.sweep is not None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    journal = path / JOURNAL
    pruner = (
        optuna.pruners.MedianPruner(n_startup_trials=MIN_FINISHED_TRIALS, n_warmup_steps=_count_warmup_epochs(job))
        if job.sweep.pruning
        else optuna.pruners.NopPruner()
    )
    try:
        # Optuna would append the next line to a line that a power loss left incomplete.
        if journal.exists() and not (content := journal.read_bytes()).endswith(b"\n"):
            os.truncate(journal, content.rfind(b"\n") + 1)
        lock = JournalFileSymlinkLock(str(journal), grace_period=LOCK_SECONDS)
        return optuna.create_study(
            storage=JournalStorage(JournalFileBackend(str(journal), lock_obj=lock)),
            study_name="sweep",
            direction="minimize" if lower_is_better(find_metric(job)) else "maximize",
            pruner=pruner,
            load_if_exists=True,
        )
    except OSError as error:
        raise storage_error(journal, error) from None
    except (ValueError, LookupError, AssertionError) as error:
        raise CheckpointError(
            f"{journal} is damaged: {error}",
            "the journal as the sweep wrote it",
            "restore it, or begin a new sweep with --new",
        ) from None


def find_metric(job: Job) -> str:
    """Find the name of the metric that ranks trials."""
    assert job.sweep is not None
    return job.sweep.metric or job.best()


def _count_warmup_epochs(job: Job) -> int:
    ranges = {parameter.key: parameter for parameter in job.parameters}
    longest = ranges.get("train.epochs")
    numbers = [choice for choice in longest.choices if isinstance(choice, int | float)] if longest else []
    epochs = job.train.epochs if longest is None else max(longest.high, *numbers, 1)
    return max(1, int(UNPRUNED_SHARE * epochs))


def check_ranges(source: SpecSource) -> None:
    """Check that Optuna accepts each range and the job both of its ends; raises SpecError for the first problem."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    job, trial = source.load(), optuna.create_study().ask()
    for parameter in job.parameters:
        try:
            with warnings.catch_warnings(action="error", category=UserWarning):
                suggest(trial, parameter)
            for value in () if parameter.choices else (parameter.low, parameter.high):
                changes = [*format_assignments({parameter.key: value}), "sweep=null"]
                replace(source, assignments=[*source.assignments, *changes]).load()
        except (ValueError, UserWarning, SpecError) as error:
            reason = error.problems[0].given if isinstance(error, SpecError) and error.problems else str(error)
            raise job.spec_error(
                ("sweep", "space", parameter.key),
                f"is refused: {' '.join(reason.split())}",
                "low below high, above 0 if log is true; a step that divides the range, without log; values that the key takes",
                "change the range, or list the values",
            ) from None


def suggest(trial: BaseTrial, parameter: Parameter) -> Any:
    """Let Optuna choose a value, or return the value that the trial already has."""
    key, low, high, step = parameter.key, parameter.low, parameter.high, parameter.step
    if parameter.choices:
        # Optuna stores plain values, so lists and mappings are JSON.
        by_text = {
            json.dumps(choice) if isinstance(choice, list | dict) else choice: choice for choice in parameter.choices
        }
        return by_text[trial.suggest_categorical(key, list(by_text))]
    if parameter.whole:
        return trial.suggest_int(key, int(low), int(high), step=int(step or 1), log=parameter.log)
    return trial.suggest_float(key, low, high, step=step, log=parameter.log)
