"""Opens the folder of a sweep, with its spec and Optuna's journal, and decides whether a command continues it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import optuna
from optuna.pruners import MedianPruner, NopPruner
from optuna.samplers import TPESampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock
from optuna.study import Study

from drivetrain.errors import CheckpointError
from drivetrain.job import Job, lower_is_better
from drivetrain.job_spec.stored_spec import compare_stored_spec, read_stored_spec, store_spec
from drivetrain.supervisor import run_folder, same_conditions
from drivetrain.supervisor.run_folder import MAY_CHANGE_ON_RESUME
from drivetrain.system.console import say
from drivetrain.system.files import USER_RWX, make_folder, storage_error
from drivetrain.system.run_files import SWEEP_FILE, refuse_links
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
    """The finished trials, in the journal."""
    job: Job
    """The job, with the defaults that the sweep began with."""

    def find_run(self, number: int) -> Path | None:
        """Find the run folder of a trial; None if it does not exist."""
        return next(reversed(run_folder.list_numbered(self.path, f"trial{number}")), None)

    def find_runs(self) -> dict[str, Path]:
        """Find the existing run folders of trials, by name in the order of the trials."""
        runs = {}
        for number in range(len(self.study.trials) + 1):
            run = self.find_run(number)
            if run:
                runs[f"trial{number}"] = run
        return runs


@contextlib.contextmanager
def open_folder(runs: Path, job: Job, *, new: bool) -> Iterator[SweepFolder]:
    """Open the latest sweep if its settings match, else start a new one.

    Raises:
        StorageError: if the folder cannot be written.
        Busy: if another process works in it.
        CheckpointError: if the latest sweep is unfinished and its settings differ, or its journal is damaged.
    """
    make_folder(runs)
    name, count = f"{job.name}-sweep", same_conditions.count_processes(job, runs)
    conditions = f"with {count} processes per trial"
    latest = next(reversed(run_folder.list_numbered(runs, name)), None)
    if latest and not new:
        refuse_links(latest)
        with contextlib.closing(os.fdopen(run_folder.lock_folder(latest))):
            folder = _open_same_sweep(latest, job, conditions)
            if folder:
                yield folder
                return
    path = run_folder.next_path(runs, name)
    make_folder(path, USER_RWX)
    with contextlib.closing(os.fdopen(run_folder.lock_folder(path))):
        yield _begin(path, job, conditions)


def _begin(path: Path, job: Job, conditions: str) -> SweepFolder:
    """Store spec and conditions of a sweep in its folder, and open its journal."""
    store_spec(path, job, SWEEP_FILE)
    study = open_study(path, job)
    study.set_user_attr("conditions", conditions)
    return SweepFolder(path, study, job)


def _open_same_sweep(path: Path, job: Job, conditions: str) -> SweepFolder | None:
    """Open a sweep that this command continues; None if the sweep is finished and its settings differ.

    Raises:
        CheckpointError: if the sweep is unfinished and its settings differ.
    """
    # The file is missing if the sweep was killed before writing it.
    trial_count = read_integer(read_mapping(read_stored_spec(path, SWEEP_FILE).data, "sweep"), "trials") or 0
    job, lines, _ = compare_stored_spec(path, job, MAY_CHANGE_IN_SWEEP, "the sweep so far", SWEEP_FILE)
    folder = SweepFolder(path, open_study(path, job), job)
    stored_conditions = folder.study.user_attrs.get("conditions", conditions)
    if stored_conditions != conditions:
        lines.append(f"it was started {stored_conditions}, and this command trains {conditions}")
    keys = [parameter.key for parameter in job.parameters]
    runs = [run for run in folder.find_runs().values() if same_conditions.read_record(run, "files")]
    changed_file = same_conditions.find_changed_file(runs[-1], job, keys) if runs else ""
    if changed_file:
        lines.append(f"{changed_file} was changed or deleted")
    if not lines:
        return _begin(path, job, stored_conditions)
    if len(folder.study.trials) < trial_count:
        raise CheckpointError(
            f"{path} is unfinished, and this has changed since it started:\n"
            + "\n".join(f"    {line}" for line in lines),
            "the settings that the sweep was started with; sweep.trials and sweep.max_time may change",
            "undo the change, or begin a new sweep with --new",
        )
    say(f"{path} is finished, and job, data or code have changed since; a new sweep begins")
    return None


def open_study(path: Path, job: Job) -> Study:
    """Open or begin the journal of a sweep; the caller holds the lock of the folder.

    Raises:
        CheckpointError: if the journal is damaged.
        StorageError: if the journal cannot be written.
    """
    journal = path / JOURNAL
    try:
        # Optuna would append its next line to a line that a power loss left incomplete.
        content = journal.read_bytes() if journal.exists() else b""
        if content and not content.endswith(b"\n"):
            os.truncate(journal, content.rfind(b"\n") + 1)
        lock = JournalFileSymlinkLock(str(journal), grace_period=LOCK_SECONDS)
        return make_study(job, 0, JournalStorage(JournalFileBackend(str(journal), lock_obj=lock)))
    except OSError as error:
        raise storage_error(journal, error) from None
    except (ValueError, LookupError, TypeError, AssertionError) as error:
        raise CheckpointError(
            f"{journal} is damaged: {error}",
            "the journal as the sweep wrote it",
            "restore it, or begin a new sweep with --new",
        ) from None


def make_study(job: Job, seed: int, storage: JournalStorage | None = None) -> Study:
    """Make a study of the job's metric whose sampler has a seed; in memory without a storage."""
    assert job.sweep is not None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna.create_study(
        storage=storage,
        study_name="sweep",
        direction="minimize" if lower_is_better(find_metric(job)) else "maximize",
        sampler=TPESampler(seed=seed),
        pruner=MedianPruner(MIN_FINISHED_TRIALS, _count_warmup_epochs(job)) if job.sweep.pruning else NopPruner(),
        load_if_exists=True,
    )


def find_metric(job: Job) -> str:
    """Find the name of the metric that ranks trials."""
    assert job.sweep is not None
    return job.sweep.metric or job.best()


def _count_warmup_epochs(job: Job) -> int:
    """Count the epochs at the start of a trial that never end it early."""
    ranges = {parameter.key: parameter for parameter in job.parameters}
    longest = ranges.get("train.epochs")
    numbers = [choice for choice in longest.choices if isinstance(choice, int | float)] if longest else []
    epochs = job.train.epochs if longest is None else max(longest.high, *numbers, 1)
    return max(1, int(UNPRUNED_SHARE * epochs))
