"""The folder of a sweep, `runs/NAME-sweep-NNN/`: which one a command uses, and whether the sweep in it is the same."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from runtime.errors import CheckpointError, SpecError
from runtime.job import Job
from runtime.job_spec.yaml_file import parse
from runtime.supervisor import named_run, run_folder, same_conditions, same_inputs
from runtime.supervisor.spec_difference import FREE, difference, spec_text
from runtime.supervisor.sweep.study import Study
from runtime.system.console import say
from runtime.system.files import PRIVATE, make_folder
from runtime.system.run_files import RunFiles, refuse_links

SPEC = named_run.SWEEP
"""The spec of all trials; job.yaml would make the folder a run."""
MAY_CHANGE = (*(key for key in FREE if key != "sweep"), "sweep.trials", "sweep.max_time")


@dataclass
class SweepFolder:
    """The folder of a sweep, locked for this process and its children."""

    path: Path
    study: Study
    lock: int


def open_sweep(runs: Path, job: Job, metric: str, *, plain: bool, new: bool) -> SweepFolder:
    """The last sweep of this job if it is the same one, or a new one with the next number.

    Raises:
        StorageError: if the folder cannot be written.
        Busy: if another process is at work in it.
        CheckpointError: if the last one is unfinished and had another spec, or its journal is damaged.
    """
    make_folder(runs)
    name = f"{job.name}-sweep"
    last = next(reversed(run_folder.numbered(runs, name)), None)
    if last and not new:
        refuse_links(last)
        lock = run_folder.lock_folder(last)
        with _closed_on_failure(lock):
            if study := _same(last, job, metric, plain):
                return SweepFolder(last, study, lock)
        os.close(lock)
    path = run_folder.next_path(runs, name)
    make_folder(path, PRIVATE)
    lock = run_folder.lock_folder(path)
    with _closed_on_failure(lock):
        RunFiles(path).write_text(SPEC, spec_text(job))
        study = Study(path, job, metric)
        study.setting("plain", plain)
        study.setting("processes", same_conditions.processes(job, path))
    return SweepFolder(path, study, lock)


@contextlib.contextmanager
def _closed_on_failure(lock: int) -> Iterator[None]:
    try:
        yield
    except BaseException:
        os.close(lock)
        raise


def _same(path: Path, job: Job, metric: str, plain: bool) -> Study | None:
    """The study of a sweep that this command goes on with; None if it is finished and was another one.

    Raises:
        CheckpointError: if it is unfinished and was another one.
    """
    wanted = _trials(path)
    lines = difference(path, job, MAY_CHANGE, "the sweep so far", SPEC)
    study = Study(path, job, metric)
    before = study.setting("plain", plain)
    if before != plain:
        lines.append("it was started " + ("with --plain" if before else "without --plain"))
    processes = same_conditions.processes(job, path)
    began = study.setting("processes", processes)
    if began != processes:
        lines.append(f"it was started with {began} processes for each trial, now {processes}")
    if file := _changed_file(path, study, job):
        lines.append(f"{file} has other content, or is not there any more")
    if not lines:
        RunFiles(path).write_text(SPEC, spec_text(job))
        return study
    if len(study.finished()) < wanted:
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
    return next(reversed(run_folder.numbered(sweep, f"trial{number}")), None)


def trial_folders(sweep: Path, count: int) -> Iterator[Path]:
    """The run folders of the first trials, of those that have one."""
    return (run for number in range(count) if (run := trial_folder(sweep, number)))


def _trials(path: Path) -> int:
    """How many trials the sweep was last asked for."""
    try:
        stored = parse(RunFiles(path).read_text(SPEC), SPEC).data["sweep"]["trials"]
        return int(stored)
    except (OSError, SpecError, LookupError, TypeError, ValueError):
        return 0  # killed before it was written


def _changed_file(path: Path, study: Study, job: Job) -> str:
    """A file of data or code that has changed since the last trial that was trained; empty if there is none."""
    keys = [parameter.key for parameter in job.parameters]
    runs = (trial_folder(path, trial.number) for trial in reversed(study.trials()))
    last = next((run for run in runs if run and (run / "data.json").exists()), None)
    return same_inputs.changed(last, job, keys) if last else ""
