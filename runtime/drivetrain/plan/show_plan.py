"""Shows the plan once; after that, in a resumed run, a notebook, a sweep or a repeat, only the changes."""

from __future__ import annotations

from pathlib import Path

from drivetrain.hardware.facts import Hardware
from drivetrain.job import Job
from drivetrain.plan.plan import Plan, load
from drivetrain.plan.plan_table import render, render_changes, render_summary
from drivetrain.system.console import is_verbose, open_console

SHOWN_PLAN = "DRIVETRAIN_SHOWN_PLAN"
"""Names the plan that a sweep has shown to the processes of its later trials."""

_last: dict[str, tuple[Plan, Path]] = {}
"""The plan last shown in this process and its file, by job name."""


def show(
    plan: Plan, job: Job, machine: Hardware, file: Path, stored: Plan | None, shown_plan: Path | None = None
) -> None:
    """Print the plan in a line, or whole if details are asked for; or its differences from the one that was shown before.

    Args:
        plan: the present plan.
        job: the user's request.
        machine: the usable machine.
        file: where the plan of this run is stored.
        stored: the plan of the run when it was resumed; None for a new run.
        shown_plan: the plan of another run, which the same command has shown.
    """
    before = (stored, file) if stored else _last.get(job.name)
    if before is None and shown_plan and shown_plan.exists():
        before = load(shown_plan), shown_plan
    if before:
        open_console().print(render_changes(plan, *before, job, machine))
    else:
        open_console().print(render(plan, job, machine) if is_verbose() else render_summary(plan, job, machine))
    _last[job.name] = plan, file
