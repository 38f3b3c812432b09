"""Compares the network of a finished run with simple models, in a process of its own that ends in time."""

from __future__ import annotations

import os
import subprocess
import sys
from math import inf
from pathlib import Path

from drivetrain.job import Job
from drivetrain.job_spec.spec_source import SpecSource
from drivetrain.report import baseline_results
from drivetrain.system import child_process, signals
from drivetrain.system.console import say
from drivetrain.system.fault_points import fault_point
from drivetrain.system.run_files import RunFiles

SWITCH = "DRIVETRAIN_BASELINES"
"""`off` in the environment holds for every job, as `baselines: off` in one."""
MODULE = "drivetrain.baselines.baselines_process"
SHARE_OF_TRAINING = 0.1
LEAST_SECONDS, MOST_SECONDS = 15.0, 60.0
"""At least so long, since starting Python with its libraries takes 4 s; at most so long, whatever the training took."""
WAITING_THREADS = {"OMP_WAIT_POLICY": "PASSIVE"}
"""Threads of the trees that wait in a busy loop take ten times as long if another process uses the CPUs."""


def compare(source: SpecSource, job: Job, run: Path) -> None:
    """Fit the simple models and print them beside the network, best first, and what that means."""
    fault_point("baselines")
    result = RunFiles(run).read_json("result.json") or {}
    best = result.get("best") or {}
    if "off" in (job.baselines, os.environ.get(SWITCH)) or not best:
        return
    seconds = _budget(job, float(result.get("seconds") or 0.0))
    limit = "as long as they take" if seconds == inf else f"up to {seconds:.0f} s"
    say(f"baselines: fitting simple models to the same samples, {limit} (baselines: off leaves them out)")
    reason = _run(source, run, seconds)
    metrics = {str(best["metric"]): float(best["value"]), **(best.get("metrics") or {})}
    content = RunFiles(run).read_json(baseline_results.FILE) or {}
    comparison = baseline_results.compare(content, str(best["metric"]), metrics)
    if comparison:
        say(f"baselines: {comparison.metric}: {comparison.line()}")
        say(f"baselines: {comparison.verdict()}")
    if reason:
        say(f"baselines: {reason}; `drivetrain baseline JOB` takes the time that they need (baselines: full, off)")


def _budget(job: Job, trained_seconds: float) -> float:
    """Seconds for all of them; infinite for `full`."""
    if job.baselines == "full":
        return inf
    return min(MOST_SECONDS, max(LEAST_SECONDS, SHARE_OF_TRAINING * trained_seconds))


def _run(source: SpecSource, run: Path, seconds: float) -> str:
    """Run the process; returns why it did not end well, or nothing."""
    paths = map(child_process.path_word, (run, source.spec))
    command = [sys.executable, "-m", MODULE, *paths, repr(seconds), *source.options()]
    with signals.forwarding() as forward:
        with signals.waiting():
            process = child_process.start(command, WAITING_THREADS)
            forward.children = [process]
        try:
            code = process.wait(None if seconds == inf else seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            return f"their {seconds:.0f} s were over before all were fitted"
    if forward.sent:
        return f"stopped by {signals.signal_name(forward.sent[0])}; the run is complete"
    return "" if code == 0 else f"their process ended with exit code {code}"
