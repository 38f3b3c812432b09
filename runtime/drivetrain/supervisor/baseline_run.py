"""Compares the network of a finished run with simple models, in a separate process with a time limit."""

from __future__ import annotations

import os
import sys
from math import inf
from pathlib import Path

from drivetrain.job import Job
from drivetrain.job.values import parse_duration
from drivetrain.job_spec.spec_source import SpecSource
from drivetrain.report import baseline_results
from drivetrain.system import child_process, signals
from drivetrain.system.console import say
from drivetrain.system.fault_points import fault_point
from drivetrain.system.run_files import BASELINES_FILE, RunFiles
from drivetrain.system.run_records import RunResult
from drivetrain.training.time_target import MAX_SIMPLE_MODELS_SECONDS, SIMPLE_MODELS_SHARE

SWITCH = "DRIVETRAIN_BASELINES"
"""Environment variable; `off` has the effect of `baselines: off` for every job."""
MODULE = "drivetrain.baselines.baselines_process"
MIN_SECONDS, MAX_SECONDS = 15.0, MAX_SIMPLE_MODELS_SECONDS
"""Bounds of the time for computing: nobody waits minutes for a comparison."""
STARTING_SECONDS = 60.0
"""Time for starting Python with its libraries and for reading the data again, where no `train.within` limits it."""
LEAST_SECONDS = 3.0
"""Minimum time of `train.within` needed to fit a simple model."""
PASSIVE_WAIT = {"OMP_WAIT_POLICY": "PASSIVE"}
"""Setting that makes waiting OpenMP threads sleep: if they spin, trees take ten times as long next to a process."""


def compare(source: SpecSource, job: Job, run: Path, report_seconds: float = 0.0) -> None:
    """Fit the simple models; print their metric next to the network's, best first, and a verdict.

    Args:
        source: source of the spec, for the child process.
        run: folder of the finished run.
        report_seconds: seconds of `train.within` to keep for the report.
    """
    fault_point("baselines")
    result = RunResult.read(run)
    best = result.best
    if "off" in (job.baselines, os.environ.get(SWITCH)) or best is None:
        return
    seconds, limit = inf, inf
    if job.baselines != "full":  # `full` has no time limit
        seconds = min(MAX_SECONDS, max(MIN_SECONDS, SIMPLE_MODELS_SHARE * (result.seconds or 0.0)))
        limit = seconds + STARTING_SECONDS
        if job.train.within and result.within_seconds is not None:
            limit = min(limit, parse_duration(job.train.within) - result.within_seconds - report_seconds)
    if limit < LEAST_SECONDS:
        say("baselines: left out, as the time of train.within is over; `drivetrain bench models JOB` fits them")
        return
    time_words = "as long as they take" if seconds == inf else f"up to {min(seconds, limit):.0f} s"
    say(f"baselines: fitting simple models to the same samples, {time_words} (baselines: off leaves them out)")
    failure = _fit_in_child(source, run, seconds, limit)
    metrics = {best.metric: best.value, **best.metrics, **result.test}
    # Also after a failure: the file contains the models fitted so far.
    comparison = baseline_results.compare_network(
        RunFiles(run).read_object(BASELINES_FILE),
        best.metric,
        metrics,
        str(getattr(getattr(job, "model", None), "name", "")),
    )
    if comparison:
        say(f"baselines: {comparison.metric}: {comparison.format_line()}")
        say(f"baselines: {comparison.describe_verdict()}")
    if failure:
        say(f"baselines: {failure}; `drivetrain bench models JOB` takes the time that they need (baselines: full, off)")


def _fit_in_child(source: SpecSource, run: Path, seconds: float, limit: float) -> str:
    """Fit the simple models in a child process, which is ended at its limit; returns the reason if it did not finish."""
    paths = map(child_process.format_path_argument, (run, source.spec))
    command = [sys.executable, "-m", MODULE, *paths, repr(seconds), repr(limit), *source.options()]
    with signals.forward_signals() as forward:
        with signals.block_signals():
            process = child_process.start_child(command, child_process.build_environment(PASSIVE_WAIT))
            forward.children = [process]
        code = child_process.wait_or_kill(process, None if limit == inf else limit)
        if code is None:
            return f"their {limit:.0f} s were over before all were fitted"
    if forward.sent:
        return f"stopped by {signals.describe_signal(forward.sent[0])}; the run is complete"
    return "" if code == 0 else f"their process ended with exit code {code}"
