"""`drivetrain repeat`: trains a job with several seeds or folds, one run after the other, and prints the spread.

Every run has its own folder, named after the job and its seed or fold. The same command skips the runs that are done
with this spec and resumes the unfinished run.
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
from drivetrain.tuning import batch_size

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
    """Number of parts of the training data; each part is the validation data once."""
    new: bool = False
    """Whether new runs begin in place of unfinished runs."""


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
    run_of: dict[str, Path] = {}
    with child_runs.open_child_runs(source, job, request.runs) as children:
        for variant, changes in variants.items():
            if code := _train_variant(request, children, job, variant, changes, run_of):
                say(
                    f"{variant} did not finish; {len(run_of)} of {len(variants)} runs are done; the same command resumes"
                )
                return code
    same_conditions.check(run_of)
    _report(request, job, run_of)
    return 0


def _keep_earliest_defaults(
    request: RepeatRequest, source: SpecSource, job: Job, variants: Mapping[str, Sequence[str]]
) -> Job:
    """Give the job the defaults of its earliest run, of any version."""
    for changes in variants.values():
        variant_job = replace(source, assignments=(*request.assignments, *changes)).load()
        done = run_folder.find_finished(request.runs, variant_job)
        if begun := done or run_folder.find_continued(request.runs, variant_job.name, None, new=request.new):
            return compare_stored_spec(begun, job).job
    return job


def _train_variant(
    request: RepeatRequest,
    children: ChildRuns,
    job: Job,
    variant: str,
    changes: Sequence[str],
    run_of: dict[str, Path],
) -> int:
    """Train a run unless it is done, and add its folder to `run_of`; returns the exit code."""
    earlier_runs = list(run_of.values())
    # Measurements of the first run apply to all runs: runs with different batch sizes or plans have no common mean.
    assignments = (*request.assignments, *changes, *batch_size.pin_measured(job, earlier_runs))
    variant_job = replace(children.source, assignments=assignments).load()
    if done := run_folder.find_finished(request.runs, variant_job):
        processes = same_conditions.count_processes(job, request.runs)
        difference = same_conditions.describe_difference(done, processes, earlier_runs)
        if not difference and (file := same_conditions.find_changed_file(done, variant_job)):
            difference = f"{file} has changed since"
        if not difference:
            say(f"{variant}: {done} is done")
            run_of[variant] = done
            return 0
        say(f"{variant}: {done} is done, and {difference}; a new run begins")
    say(f"{variant}: run {len(run_of) + 1}")
    first_run = earlier_runs[0] if earlier_runs else None
    options = ["--new"] if request.new else []
    if first_run:
        options += ["--plan", str(first_run / PLAN_FILE)]
    code, result = children.train(assignments, *options, shown=first_run, baselines=not run_of)
    if not code:
        run_of[variant] = Path(result["run"])
    return code


def _report(request: RepeatRequest, job: Job, run_of: Mapping[str, Path]) -> None:
    """Print mean and standard deviation of every metric, and write repeat.json with the values of each run."""
    folder = request.runs / f"repeat-{job.name}"
    make_folder(folder, USER_RWX)
    values = {variant: _read_metrics(RunFiles(run).read_object(RESULT_FILE)) for variant, run in run_of.items()}
    rows = {}
    for metric in dict.fromkeys(metric for metrics in values.values() for metric in metrics):
        numbers = [metrics.get(metric, math.nan) for metrics in values.values()]
        if broken := [variant for variant, number in zip(values, numbers, strict=True) if not math.isfinite(number)]:
            say(f"warning: {metric} has no mean: {', '.join(broken)} ended with NaN")
            continue
        mean, deviation = statistics.fmean(numbers), statistics.stdev(numbers)
        rows[metric] = {"mean": mean, "deviation": deviation, "values": numbers}
        texts = align_numbers((mean, deviation, min(numbers), max(numbers)))
        say("{}: {} ± {}, {} to {} ({} runs)".format(printable(metric), *texts, len(numbers)))
    labels = [] if request.folds is None else _inspect_labels(folder, job, run_of)
    runs = {variant: {"run": run.name, "metrics": values[variant]} for variant, run in run_of.items()}
    RunFiles(folder).write_json(RESULTS, {"metrics": rows, "runs": runs, "labels": labels})
    say(f"the numbers are in {folder / RESULTS}; {_suggest_comparison(list(run_of.values()))}")


def _read_metrics(result: Mapping[str, Any]) -> dict[str, float]:
    """Read the metrics of the evaluation that selected the weights, its own metric first, and of the final test."""
    best, test = read_mapping(result, "best"), read_mapping(result, "test")
    metrics = {**read_mapping(best, "metrics"), **read_mapping(test, "metrics")}
    numbers = {key: math.nan if (number := parse_number(one)) is None else number for key, one in metrics.items()}
    return dict(sorted(numbers.items(), key=lambda item: item[0] != best.get("metric")))


def _suggest_comparison(runs: Sequence[Path]) -> str:
    return f"side by side: drivetrain compare {shlex.join(map(str, runs[:MAX_COMPARED_RUNS]))}"


def _list_variants(request: RepeatRequest, job: Job) -> dict[str, tuple[str, ...]]:
    """List the spec changes of each run, by its name.

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
    """Write suspicious labels to the run that validated on their fold; returns lines about them."""
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
