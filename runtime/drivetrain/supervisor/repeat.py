"""`drivetrain repeat`: trains a job with several seeds or folds, one run after the other; writes a page about all of them.

Every run has its own folder, named after the job and its seed or fold. The same command skips the runs that are done with this
spec and resumes the one that is not.
"""

from __future__ import annotations

import os
import shlex
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from drivetrain.errors import SpecError
from drivetrain.inference import suspicious_labels
from drivetrain.job import Job
from drivetrain.job.data import Data
from drivetrain.job_spec.spec_source import SpecSource
from drivetrain.job_spec.stored_spec import compare_stored_spec, store_spec
from drivetrain.report import repeated
from drivetrain.supervisor import baseline_run, run_folder, same_conditions, supervisor
from drivetrain.supervisor.supervisor import TrainRequest
from drivetrain.system.console import say
from drivetrain.system.files import make_folder
from drivetrain.system.run_files import PLAN_FILE
from drivetrain.tuning import run_length

MAX_RUNS = 100
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
    variants = _list_variants(request, job)
    make_folder(request.runs)
    for changes in variants.values():
        # All runs have the defaults of the earliest one, whichever version began it.
        one = replace(source, assignments=(*request.assignments, *changes)).load()
        done = run_folder.find_finished(request.runs, one)
        if begun := done or run_folder.find_continued(request.runs, one.name, None, new=request.new):
            job = compare_stored_spec(begun, job).job
            break
    with tempfile.TemporaryDirectory(prefix="repeat-") as scratch:
        store_spec(Path(scratch), job)
        return _train_all(request, source.copy_to(Path(scratch), job), job, variants)


def _train_all(request: RepeatRequest, source: SpecSource, job: Job, variants: Mapping[str, tuple[str, ...]]) -> int:
    """Train all runs from one copy of the job file and the user's code."""
    run_of: dict[str, Path] = {}
    processes = same_conditions.count_processes(job, request.runs)
    for variant, changes in variants.items():
        # What the first run has measured holds for all: runs of different batch sizes or plans have no common mean.
        earlier_runs = list(run_of.values())
        size = run_length.pin_measured(job, earlier_runs)
        assignments = (*request.assignments, *changes, *size)
        variant_source = replace(source, assignments=assignments)
        one = variant_source.load()
        done = run_folder.find_finished(request.runs, one)
        difference = ""
        if done:
            difference = same_conditions.describe_difference(done, processes, earlier_runs, plain=request.plain)
            if not difference and (file := same_conditions.find_changed_file(done, one)):
                difference = f"{file} has changed since"
        if difference:
            say(f"{variant}: {done} is done, and {difference}; a new run begins")
            done = None
        if done:
            say(f"{variant}: {done} is done")
        else:
            say(f"{variant}: run {len(run_of) + 1} of {len(variants)}")
            train_request = TrainRequest(
                variant_source,
                request.runs,
                plan=earlier_runs[0] / PLAN_FILE if earlier_runs and not request.plain else None,
                plain=request.plain,
                new=request.new,
                baselines=not run_of,
                shown=earlier_runs[0] / PLAN_FILE if earlier_runs else None,
            )
            if code := supervisor.train(train_request):
                say(
                    f"{variant} did not finish; {len(run_of)} of {len(variants)} runs are done; the same command resumes"
                )
                return code
            done = run_folder.list_numbered(request.runs, one.name)[-1]
        run_of[variant] = done
    same_conditions.check(run_of)
    folder = request.runs / f"repeat-{job.name}"
    labels = [] if request.folds is None else _inspect_labels(folder, job, run_of)
    spreads, left_out = repeated.write(folder, job.name, run_of, [*_list_notes(request, job, run_of), *labels])
    for spread in spreads:
        say(f"{spread.metric}: {spread} ({len(run_of)} runs)")
    for line in left_out:
        say(f"warning: {line}")
    say(f"repeat: {folder}/repeat.html")
    return 0


def _list_variants(request: RepeatRequest, job: Job) -> dict[str, tuple[str, ...]]:
    """What each run changes in the spec, by what the page calls it.

    Raises:
        SpecError: if the number of seeds or folds is out of range.
    """
    if request.seeds is not None and request.folds is not None:
        raise SpecError("--seeds and --folds together", "one of them", "remove one")
    option, count = ("--folds", request.folds) if request.folds is not None else ("--seeds", request.seeds)
    count = 3 if count is None else count
    if not 2 <= count <= MAX_RUNS:
        raise SpecError(f"{option} {count}", f"2 to {MAX_RUNS}", f"{option} {max(2, min(count, MAX_RUNS))}")
    if request.folds is not None:
        return {
            f"fold {fold}": (f"data.fold={fold}/{count}", f"name={job.name}-fold{fold}of{count}")
            for fold in range(1, count + 1)
        }
    seeds = range(job.train.seed, job.train.seed + count)
    return {f"seed {seed}": (f"train.seed={seed}", f"name={job.name}-seed{seed}") for seed in seeds}


def _inspect_labels(folder: Path, job: Job, run_of: Mapping[str, Path]) -> list[str]:
    """Write the labels that look wrong to the run of the fold that they are in; returns lines about them."""
    review = suspicious_labels.inspect_folds(run_of.values())
    lines = review.describe()
    if review.suspicious:
        make_folder(folder)
        lines.append(f"labels: all of them are in {suspicious_labels.write(folder, review.suspicious)}")
    lines += _describe_more_data(job)
    for line in lines:
        say(line)
    return lines


def _describe_more_data(job: Job) -> list[str]:
    """Whether more data would help; nothing without simple models."""
    if "off" in (job.baselines, os.environ.get(baseline_run.SWITCH)):
        return []
    from drivetrain.baselines.measure import describe_learning_curve
    from drivetrain.data.load_data import load

    return [describe_learning_curve(job, load(job))]


def _list_notes(request: RepeatRequest, job: Job, run_of: dict[str, Path]) -> list[str]:
    compared = f"side by side: drivetrain compare {shlex.join(map(str, run_of.values()))}"
    if request.folds is not None:
        return [
            f"Each run was validated on one of {request.folds} folds and trained on the others, with seed {job.train.seed}.",
            compared,
        ]
    is_split_here = isinstance(job.data, Data) and not isinstance(job.data.validation, str)
    split = " and, unless the data is a series, other validation samples" if is_split_here else ""
    return [
        f"Each seed draws other initial weights, another order of the samples, augmentation, dropout{split}.",
        compared,
    ]
