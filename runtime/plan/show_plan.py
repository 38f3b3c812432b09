"""Shows the plan once; after that, in a resumed run, a notebook, a sweep or a repeat, only the changes."""

from __future__ import annotations

from pathlib import Path

from runtime.hardware.facts import Hardware
from runtime.job import Job
from runtime.plan.plan import Plan, load
from runtime.plan.plan_table import render, render_changes
from runtime.system.console import console

SHOWN = "DRIVETRAIN_SHOWN_PLAN"
"""Names the plan that a sweep has shown to the processes of its later trials."""

_last: dict[str, tuple[Plan, Path]] = {}
"""The plan last shown in this process and its file, by job name."""


def show(plan: Plan, job: Job, machine: Hardware, file: Path, stored: Plan | None, shown: Path | None = None) -> None:
    """Print the plan, or its differences from the one that was shown before.

    Args:
        plan: the present plan.
        job: the user's request.
        machine: the usable machine.
        file: where the plan of this run is stored.
        stored: the plan of the run when it was resumed; None for a new run.
        shown: the plan of another run, which the same command has shown.
    """
    before = (stored, file) if stored else _last.get(job.name)
    if before is None and shown and shown.exists():
        before = load(shown), shown
    console().print(render_changes(plan, *before, job, machine) if before else render(plan, job, machine))
    _last[job.name] = plan, file
