"""`drivetrain repeat`: trains a job with several seeds or folds, one run after the other, and prints the spread.

Every run has its own folder, named after the job and its seed or fold. The same command skips finished runs with this spec
and resumes the unfinished run.
"""

from __future__ import annotations

import math
import os
import shlex
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from drivetrain.errors import SpecError
from drivetrain.inference import suspicious_labels
from drivetrain.job import Job
from drivetrain.job_spec.spec_source import SpecSource
from drivetrain.job_spec.stored_spec import compare_stored_spec
from drivetrain.report import baseline_results
from drivetrain.report.comparison import MAX_COMPARED_RUNS
from drivetrain.report.formatting import align_numbers
from drivetrain.supervisor import child_runs, run_folder, same_conditions
from drivetrain.supervisor.child_runs import ChildRuns
from drivetrain.system.console import say
from drivetrain.system.files import USER_RWX, make_folder
from drivetrain.system.printable import printable
from drivetrain.system.run_files import PLAN_FILE, RESULT_FILE, RunFiles
from drivetrain.system.run_records import parse_number, read_mapping

RESULTS = "repeat.json"
MAX_RUNS = 100
"""Largest number of seeds or folds."""


@dataclass(frozen=True)
class RepeatRequest:
    """Options of `drivetrain repeat`."""

    spec: Path
    assignments: Sequence[str] = ()
    runs: Path = Path("runs")
    seeds: int | None = None
    """Number of seeds; 3 without folds."""
    folds: int | None = None
    """Number of folds of the training data; each fold is the validation data once."""
    new: bool = False
    """Whether to begin new runs instead of resuming unfinished runs."""


def repeat(request: RepeatRequest) -> int:
    """Train all runs that are not done; returns 0, or the exit code of the first run that did not finish.

    Raises:
        SpecError: if the number of seeds is out of range.
        CheckpointError: if data or code have changed between the runs.
    """
    source = SpecSource(request.spec, request.assignments).read()
    job = source.load()
    variants = _list_variants(request, job)
    make_folder(request.runs)
    job = _keep_earliest_defaults(request, source, job, variants)
    with child_runs.open_child_runs(source, job, request.runs) as children:
        for variant, changes in variants.items():
            variant_job, assignments = children.assign(changes)
            run, code = _find_done(children, variant, variant_job), 0
            if run is None:
                run, code = _train_variant(children, variant, assignments, new=request.new)
            if code:
                done = f"{len(children.runs)} of {len(variants)} runs are done"
                say(f"{variant} did not finish; {done}; run the same command to continue")
                return code
            children.runs[variant] = run
    same_conditions.check(children.runs)
    _report(request, job, children.runs)
    return 0


def _keep_earliest_defaults(
    request: RepeatRequest, source: SpecSource, job: Job, variants: Mapping[str, Sequence[str]]
) -> Job:
    """Give the job the defaults of its earliest run, which may come from another version."""
    for changes in variants.values():
        variant_job = replace(source, assignments=(*request.assignments, *changes)).load()
        run = run_folder.find_finished(request.runs, variant_job)
        run = run or run_folder.find_continued(request.runs, variant_job.name, None, new=request.new)
        if run:
            return compare_stored_spec(run, job).job
    return job


def _find_done(children: ChildRuns, variant: str, job: Job) -> Path | None:
    """Find the finished run of a variant; None if it must be trained, also because something else has changed since."""
    run = run_folder.find_finished(children.parent, job)
    if run is None:
        return None
    processes = same_conditions.count_processes(children.job, children.parent)
    difference = same_conditions.describe_difference(run, processes, children.first)
    changed_file = "" if difference else same_conditions.find_changed_file(run, job)
    if changed_file:
        difference = f"{changed_file} has changed since"
    if difference:
        say(f"{variant}: {run} is done, but {difference}; a new run begins")
        return None
    say(f"{variant}: {run} is done")
    return run


def _train_variant(children: ChildRuns, variant: str, assignments: Sequence[str], *, new: bool) -> tuple[Path, int]:
    """Train a run with the plan of the first one; returns its folder and its exit code."""
    say(f"{variant}: run {len(children.runs) + 1}")
    options = ["--new"] if new else []
    if children.first:
        options += ["--plan", str(children.first / PLAN_FILE)]
    code, result = children.train(assignments, *options, baselines=not children.runs)
    return Path(result.get("run", "")), code


def _report(request: RepeatRequest, job: Job, run_of: Mapping[str, Path]) -> None:
    """Print mean and standard deviation of every metric, and write repeat.json with the values of each run."""
    folder = request.runs / f"repeat-{job.name}"
    make_folder(folder, USER_RWX)
    values = {variant: _read_metrics(RunFiles(run).read_object(RESULT_FILE)) for variant, run in run_of.items()}
    rows = {}
    for metric in dict.fromkeys(metric for metrics in values.values() for metric in metrics):
        numbers = {variant: metrics.get(metric, math.nan) for variant, metrics in values.items()}
        without_number = [variant for variant, number in numbers.items() if not math.isfinite(number)]
        if without_number:
            say(f"warning: {metric} has no mean: {', '.join(without_number)} ended with NaN")
            continue
        mean, deviation = statistics.fmean(numbers.values()), statistics.stdev(numbers.values())
        rows[metric] = {"mean": mean, "deviation": deviation, "values": list(numbers.values())}
        texts = align_numbers((mean, deviation, min(numbers.values()), max(numbers.values())))
        say("{}: {} ± {}, {} to {} ({} runs)".format(printable(metric), *texts, len(numbers)))
    labels = [] if request.folds is None else _inspect_labels(folder, job, run_of)
    runs = {variant: {"run": run.name, "metrics": values[variant]} for variant, run in run_of.items()}
    RunFiles(folder).write_json(RESULTS, {"metrics": rows, "runs": runs, "labels": labels})
    compared = shlex.join(map(str, list(run_of.values())[:MAX_COMPARED_RUNS]))
    say(f"the numbers are in {folder / RESULTS}; side by side: drivetrain compare {compared}")


def _read_metrics(result: Mapping[str, Any]) -> dict[str, float]:
    """Read the metrics of the best evaluation, the metric that selected it first, and of the final test."""
    best, test = read_mapping(result, "best"), read_mapping(result, "test")
    numbers: dict[str, float] = {}
    for name, value in {**read_mapping(best, "metrics"), **read_mapping(test, "metrics")}.items():
        number = parse_number(value)
        numbers[name] = math.nan if number is None else number
    return dict(sorted(numbers.items(), key=lambda entry: entry[0] != best.get("metric")))


def _list_variants(request: RepeatRequest, job: Job) -> dict[str, tuple[str, ...]]:
    """List the assignments of each run, by its name.

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
    """Write suspicious labels to the runs that validated on their folds; returns lines about them."""
    review = suspicious_labels.inspect_folds(run_of.values())
    lines = review.describe()
    if review.suspicious:
        lines.append(f"labels: all of them are in {suspicious_labels.write(folder, review.suspicious)}")
    lines += _describe_more_data(job)
    for line in lines:
        say(line)
    return lines


def _describe_more_data(job: Job) -> list[str]:
    """Describe whether more data would help; nothing without simple models."""
    if "off" in (job.baselines, os.environ.get(baseline_results.SWITCH)):
        return []
    from drivetrain.baselines.measure import describe_learning_curve
    from drivetrain.data.load_data import load

    return [describe_learning_curve(job, load(job))]
