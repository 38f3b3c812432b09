"""Compares the time that a stopped training gets with what an earlier run of the job needed for a step and a save."""

from __future__ import annotations

from pathlib import Path

from drivetrain.errors import CheckpointError, SpecError
from drivetrain.job import Job
from drivetrain.job.values import parse_duration, parse_interval
from drivetrain.report.record import read
from drivetrain.report.summary import Summary, summarize
from drivetrain.supervisor.remote_copy.copy_thread import STOPPED_SECONDS
from drivetrain.supervisor.run_folder import list_numbered
from drivetrain.supervisor.supervisor import STOPPED_REPORT


def check(job: Job, runs: Path, grace: str, key: str) -> str:
    """The line that says whether the time suffices.

    Args:
        job: the job.
        runs: where its earlier runs are.
        grace: the time between the signal and the end.
        key: where it is set, for the message.

    Raises:
        SpecError: if an earlier run needed longer.
    """
    copy_note = f"; and up to {STOPPED_SECONDS:.0f} s for checkpoint.copy_to" if job.checkpoint.copy_to else ""
    for run in reversed(list_numbered(runs, job.name) if runs.is_dir() else []):
        try:
            needed = _estimate_needed_seconds(job, summarize(read(run)))
        except CheckpointError:
            continue
        if needed is None:
            continue
        if needed > parse_duration(grace):
            raise SpecError(
                f"{key}: grace is {grace}, and a step and a save took about {needed:.0f} s in {run.name}",
                f"more than {needed:.0f} s; what has happened since the last checkpoint would be lost each time",
                f"set grace: {2 * needed:.0f}s",
            )
        return f"grace period {grace}: a step and a save took about {needed:.0f} s in {run.name}{copy_note}"
    return f"grace period {grace}: not compared with a step and a save, since no earlier run of {job.name} is in {runs}{copy_note}"


def _estimate_needed_seconds(job: Job, result: Summary) -> float | None:
    """Seconds of a step, a save and the report, all on average; None if the run does not say."""
    if not result.steps or not result.seconds or "checkpoint" not in result.phases:
        return None
    kind, every = parse_interval(job.checkpoint.every)
    lasted = {"seconds": result.seconds, "steps": result.steps, "epoch": result.epochs or 1}[kind]
    saves = 1 + lasted // every
    training_seconds = sum(result.phases.get(phase, 0.0) for phase in ("train", "input", "forward", "optimizer"))
    return training_seconds / result.steps + result.phases["checkpoint"] / saves + STOPPED_REPORT
