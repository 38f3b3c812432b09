"""`drivetrain repeat`: trains a job with several seeds or folds, one run after the other; writes a page about all of them.

Every run has its own folder, named after the job and its seed or fold. The same command skips the runs that are done with this
spec and resumes the one that is not.
"""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from runtime.errors import SpecError
from runtime.job import Job
from runtime.job.data import Data
from runtime.job_spec.spec_source import SpecSource
from runtime.report import repeated
from runtime.supervisor import run_folder, same_conditions, same_inputs, supervisor
from runtime.supervisor.train_request import TrainRequest
from runtime.system.console import say
from runtime.system.files import make_folder
from runtime.tuning import batch_size

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
        CheckpointError: if data or code changed between the runs.
        DrivetrainError: for every problem of a run that is found before its trainer starts.
    """
    source = SpecSource(request.spec, request.assignments).read()
    job = source.load()
    variants = _variants(request, job)
    make_folder(request.runs)
    with tempfile.TemporaryDirectory(prefix="repeat-") as scratch:
        return _train_all(request, source.copy_to(Path(scratch), job), job, variants)


def _train_all(request: RepeatRequest, source: SpecSource, job: Job, variants: Mapping[str, tuple[str, ...]]) -> int:
    """Train all runs from one copy of the job file and the user's code."""
    found: dict[str, Path] = {}
    processes = same_conditions.processes(job, request.runs)
    for variant, changes in variants.items():
        # What the first run has measured holds for all: runs of different batch sizes or plans have no common mean.
        others = list(found.values())
        size = batch_size.pinned(job, others)
        assignments = (*request.assignments, *changes, *size)
        one = replace(source, assignments=assignments).load()
        done = run_folder.finished(request.runs, one)
        if done and (other := same_conditions.difference(done, processes, others, plain=request.plain)):
            say(f"{variant}: {done} is done, and {other}; a new run begins")
            done = None
        if done and (file := same_inputs.changed(done, one)):
            say(f"{variant}: {done} is done, and {file} has changed since; a new run begins")
            done = None
        if done:
            say(f"{variant}: {done} is done")
        else:
            say(f"{variant}: run {len(found) + 1} of {len(variants)}")
            wanted = TrainRequest(
                request.spec,
                assignments,
                request.runs,
                plan=others[0] / "plan.json" if others and not request.plain else None,
                plain=request.plain,
                new=request.new,
                copy=source.copy,
                shown=others[0] / "plan.json" if others else None,
            )
            if code := supervisor.train(wanted):
                say(
                    f"{variant} did not finish; {len(found)} of {len(variants)} runs are done; the same command resumes"
                )
                return code
            done = run_folder.numbered(request.runs, one.name)[-1]
        found[variant] = done
    same_inputs.check(found)
    folder = request.runs / f"repeat-{job.name}"
    result = repeated.write(folder, job.name, found, _notes(request, job, found))
    for spread in result.spreads:
        say(f"{spread.metric}: {spread} ({len(found)} runs)")
    for line in result.left_out:
        say(f"warning: {line}")
    say(f"repeat: {folder}/repeat.html")
    return 0


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
