"""Compares the time that a stopped training gets with what an earlier run of the job needed for a step and a save."""

from __future__ import annotations

from pathlib import Path

from runtime.errors import CheckpointError, SpecError
from runtime.job import Job
from runtime.job.values import duration_seconds, interval
from runtime.report.record import read
from runtime.report.summary import Summary, summarize
from runtime.supervisor.remote_copy.copy_child import STOPPED_REST
from runtime.supervisor.run_folder import numbered
from runtime.supervisor.supervisor import STOPPED_REPORT


def check(job: Job, runs: Path, grace: str, place: str) -> str:
    """The line that says whether the time suffices.

    Args:
        job: the job.
        runs: where its earlier runs are.
        grace: the time between the signal and the end.
        place: where it is set, for the message.

    Raises:
        SpecError: if an earlier run needed longer.
    """
    more = f"; and up to {STOPPED_REST:.0f} s for checkpoint.copy_to" if job.checkpoint.copy_to else ""
    for run in reversed(numbered(runs, job.name) if runs.is_dir() else []):
        try:
            needed = _needed(job, summarize(read(run)))
        except CheckpointError:
            continue
        if needed is None:
            continue
        if needed > duration_seconds(grace):
            raise SpecError(
                f"{place}: grace is {grace}, and a step and a save took about {needed:.0f} s in {run.name}",
                f"more than {needed:.0f} s; what has happened since the last checkpoint would be lost each time",
                f"set grace: {2 * needed:.0f}s",
            )
        return f"grace period {grace}: a step and a save took about {needed:.0f} s in {run.name}{more}"
    return f"grace period {grace}: not compared with a step and a save, since no earlier run of {job.name} is in {runs}{more}"


def _needed(job: Job, result: Summary) -> float | None:
    """Seconds of a step, a save and the report, all on average; None if the run does not say."""
    if not result.steps or not result.seconds or "checkpoint" not in result.phases:
        return None
    kind, every = interval(job.checkpoint.every)
    lasted = {"seconds": result.seconds, "steps": result.steps, "epoch": result.epochs or 1}[kind]
    saves = 1 + lasted // every
    spent = sum(result.phases.get(phase, 0.0) for phase in ("train", "input", "forward", "optimizer"))
    return spent / result.steps + result.phases["checkpoint"] / saves + STOPPED_REPORT
