"""`drivetrain repeat`: trains a job with several seeds or folds, one run after the other; writes a page about all of them.

Every run has its own folder, named after the job and its seed or fold. The same command skips the runs that are done with this
spec and resumes the one that is not.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runtime.data import fingerprint
from runtime.errors import CheckpointError, SpecError
from runtime.job import Job
from runtime.job.data import Data
from runtime.job.formatting import dotted
from runtime.job_spec.spec_source import SpecSource
from runtime.report import repeated
from runtime.supervisor import run_folder, supervisor
from runtime.supervisor.spec_difference import difference
from runtime.system.console import say
from runtime.system.files import make_folder, read_json

MOST = 100
"""Largest number of seeds or folds."""


@dataclass(frozen=True)
class RepeatRequest:
    """The options of `drivetrain repeat`."""

    spec: Path
    assignments: Sequence[str] = ()
    runs: Path = Path("runs")
    seeds: int | None = None
    """How many seeds; 3 without folds."""
    folds: int | None = None
    """How many parts the training data is split into, each of which is the validation data once."""
    plain: bool = False
    new: bool = False
    """Whether unfinished runs are left, and others begun in their place."""


def repeat(request: RepeatRequest) -> int:
    """Train with every seed that is not done; returns 0, or the exit code of the first run that did not finish.

    Raises:
        SpecError: if the number of seeds is out of range.
        CheckpointError: if the data changed between the runs.
        DrivetrainError: for every problem of a run that is found before its trainer starts.
    """
    job = SpecSource(request.spec, request.assignments).load()
    variants = _variants(request, job)
    make_folder(request.runs)
    found: dict[str, Path] = {}
    for variant, changes in variants.items():
        assignments = (*request.assignments, *changes)
        one = SpecSource(request.spec, assignments).load()
        done = _done(request.runs, one)
        if done and (changes_since := _changed_data(done, one)):
            say(f"{variant}: {done} is done, and {changes_since} has changed since; a new run begins")
            done = None
        if done:
            say(f"{variant}: {done} is done")
        else:
            say(f"{variant}: run {len(found) + 1} of {len(variants)}")
            wanted = supervisor.TrainRequest(
                request.spec, assignments, request.runs, plain=request.plain, new=request.new
            )
            if code := supervisor.train(wanted):
                say(
                    f"{variant} did not finish; {len(found)} of {len(variants)} runs are done; the same command resumes"
                )
                return code
            done = run_folder.numbered(request.runs, one.name)[-1]
        found[variant] = done
    _check_same_data(found)
    folder = request.runs / f"repeat-{job.name}"
    spreads = repeated.write(folder, job.name, found, _notes(request, job, found))
    for spread in spreads:
        say(f"{spread.metric}: {spread} ({len(found)} runs)")
    say(f"repeat: {folder}/repeat.html")
    return 0


def _done(runs: Path, job: Job) -> Path | None:
    """The last run of this spec, if it has finished."""
    last = next(reversed(run_folder.numbered(runs, job.name)), None)
    finished = last is not None and run_folder.status(last) == "done" and (last / "job.yaml").is_file()
    return last if last and finished and not difference(last, job) else None


def _files(run: Path) -> dict[str, Any]:
    """The files that a run was trained with, by spec key; empty if they are not recorded."""
    record = read_json(run / "data.json")
    files = record.get("files") if isinstance(record, dict) else None
    return files if isinstance(files, dict) else {}


def _changed_data(run: Path, job: Job) -> str:
    """A data file of a finished run that is another one now; empty if there is none."""
    recorded = _files(run)
    for path, text in job.data_paths():
        place, key = job.resolve(text), dotted(path)
        if key in recorded:
            base = place if recorded[key]["folder"] else place.parent
            name = next((name for name, _ in fingerprint.changed(base, recorded[key]["rows"])), None)
            if name:
                return str(base / name)
    return ""


def _check_same_data(runs: Mapping[str, Path]) -> None:
    """Check that all runs had the same files: a file that was added to a folder is found by the runs that read it.

    Raises:
        CheckpointError: if they had not; their mean would mean nothing.
    """
    contents = {
        run: {
            key: {name: row.rpartition(" ")[2] for name, row in entry["rows"].items()}
            for key, entry in _files(run).items()
            if key.startswith("data.")
        }
        for run in runs.values()
    }
    first, *others = contents
    if other := next((run for run in others if contents[run] != contents[first]), None):
        raise CheckpointError(
            f"{first} and {other} were trained with other data",
            "one set of data for all runs",
            f"move the runs with the earlier data away, such as {first}; the same command then trains them again",
        )


def _variants(request: RepeatRequest, job: Job) -> dict[str, tuple[str, ...]]:
    """What each run changes in the spec, by what the page calls it.

    Raises:
        SpecError: if the number of seeds or folds is out of range.
    """
    if request.seeds is not None and request.folds is not None:
        raise SpecError("--seeds and --folds together", "one of them", "remove one")
    option, count = ("--folds", request.folds) if request.folds is not None else ("--seeds", request.seeds)
    count = 3 if count is None else count
    if not 2 <= count <= MOST:
        raise SpecError(f"{option} {count}", f"2 to {MOST}", f"{option} {max(2, min(count, MOST))}")
    if request.folds is not None:
        return {
            f"fold {fold}": (f"data.fold={fold}/{count}", f"name={job.name}-fold{fold}of{count}")
            for fold in range(1, count + 1)
        }
    seeds = range(job.train.seed, job.train.seed + count)
    return {f"seed {seed}": (f"train.seed={seed}", f"name={job.name}-seed{seed}") for seed in seeds}


def _notes(request: RepeatRequest, job: Job, found: dict[str, Path]) -> list[str]:
    compared = f"side by side: drivetrain compare {shlex.join(map(str, found.values()))}"
    if request.folds is not None:
        return [
            f"Each run was validated on one of {request.folds} folds and trained on the others, with seed {job.train.seed}.",
            compared,
        ]
    own = isinstance(job.data, Data) and not isinstance(job.data.validation, str)
    split = " and, unless the data is a series, other validation samples" if own else ""
    return [
        f"Each seed draws other initial weights, another order of the samples, augmentation, dropout{split}.",
        compared,
    ]
