"""Shown: the plan is shown once; after that, in a resumed run or a notebook, only what has changed since."""

from __future__ import annotations

from pathlib import Path

from runtime.hardware.facts import Hardware
from runtime.job import Job
from runtime.plan.plan import Plan
from runtime.plan.plan_table import console, render, render_changes

_last: dict[str, tuple[Plan, Path]] = {}
"""The plan that was last shown in this process, by the name of the job, and where it is stored."""


def show(plan: Plan, job: Job, machine: Hardware, file: Path, stored: Plan | None) -> None:
    """Print the plan, or how it differs from the one that was shown before.

    Args:
        plan: what holds now.
        job: what was asked for.
        machine: what may be used.
        file: where the plan of this run is stored.
        stored: what stood there when the run was resumed; None for a run that starts.
    """
    before = (stored, file) if stored else _last.get(job.name)
    console().print(render_changes(plan, *before, job, machine) if before else render(plan, job, machine))
    _last[job.name] = plan, file
