"""Runs `drivetrain bench models JOB`: fits simple models to a job's data, within seconds and without any training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path

from drivetrain.inference import thread_limits
from drivetrain.job.formatting import format_metric
from drivetrain.job_spec.spec_source import SpecSource
from drivetrain.report.baseline_results import Baseline, Skipped
from drivetrain.system.console import open_console, say, say_aside, say_json

MAX_SECONDS = 60.0  # for all simple models, unless the job has `baselines: full`


@dataclass(frozen=True)
class BaselineRequest:
    """Options of `drivetrain bench models`."""

    spec: Path
    assignments: Sequence[str] = ()
    json: bool = False


def measure_baselines(request: BaselineRequest) -> int:
    """Fit the simple models, and print the metrics of each model as soon as they are known; returns 0.

    Raises:
        DrivetrainError: if the job file or the data has a problem.
    """
    machine = thread_limits.limit_threads()
    from drivetrain.baselines.measure import fit_simple_models
    from drivetrain.data.class_balance import choose_best_metric
    from drivetrain.data.load_data import add_test, load

    job = SpecSource(request.spec, request.assignments).load()
    say_aside("baseline: reading the data")
    dataset = load(job)
    add_test(job, dataset)
    metric = choose_best_metric(job, dataset)
    outcomes = {}
    seconds = inf if job.baselines == "full" else MAX_SECONDS
    for outcome in fit_simple_models(job, dataset, seconds, free_memory=machine.memory.available):
        outcomes[outcome.name] = outcome
        if isinstance(outcome, Baseline) and metric in outcome.metrics:
            result = f"{outcome.format_title()}: {metric} {format_metric(outcome.metrics[metric])}"
            say_aside(f"baseline: {result}, {outcome.rows:,} of {outcome.of:,} samples")
    fitted = [outcome for outcome in outcomes.values() if isinstance(outcome, Baseline)]
    if request.json:
        say_json({"metric": metric, "baselines": [vars(row) for row in fitted]}, ascii_only=False)
        return 0
    _show(fitted, metric)
    for outcome in outcomes.values():
        if isinstance(outcome, Skipped):
            say(f"no {outcome.name} model: {outcome.reason}")
    return 0


def _show(rows: Sequence[Baseline], best: str) -> None:
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 2), header_style="dim", show_edge=False)
    table.add_column("metric", no_wrap=True)
    for row in rows:
        table.add_column(escape(row.format_title()), justify="right")
    for metric in rows[0].metrics:
        values = (format_metric(row.metrics[metric]) for row in rows)
        table.add_row(metric, *values, style="bold" if metric == best else "")
    table.add_row("seconds", *(f"{row.seconds:.1f}" for row in rows), style="dim")
    open_console().print(table)
    say(f"{best} (checkpoint.best) chooses the weights of a network; its value should be better than these")
