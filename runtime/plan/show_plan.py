"""Shows the plan once; after that, in a resumed run or a notebook, only the changes."""

from __future__ import annotations

from pathlib import Path

from runtime.hardware.facts import Hardware
from runtime.job import Job
from runtime.plan.plan import Plan
from runtime.plan.plan_table import render, render_changes
from runtime.system.console import console

_last: dict[str, tuple[Plan, Path]] = {}
"""The plan last shown in this process and its file, by job name."""


def show(plan: Plan, job: Job, machine: Hardware, file: Path, stored: Plan | None) -> None:
    """Print the plan, or its differences from the one that was shown before.

    Args:
        plan: the present plan.
        job: the user's request.
        machine: the usable machine.
        file: where the plan of this run is stored.
        stored: the plan of the run when it was resumed; None for a new run.
    """
    before = (stored, file) if stored else _last.get(job.name)
    console().print(render_changes(plan, *before, job, machine) if before else render(plan, job, machine))
    _last[job.name] = plan, file
