"""Alone: facts and plan for a Python program that only wants to know; no torch is loaded."""

from __future__ import annotations

from pathlib import Path

from runtime import plan as plans
from runtime import spec
from runtime.detect import detect
from runtime.hardware import Hardware, load
from runtime.job import Job
from runtime.workload import Workload


def facts_here(runs: Path | str = "runs") -> Hardware:
    """What this process may really use of the machine.

    Args:
        runs: the folder whose free space counts.
    """
    return detect(Path(runs))


def plan_for(
    job: Job | Path | str, *, hardware: Hardware | Path | str | None = None, workload: Workload | None = None,
    plain: bool = False,
) -> plans.Plan:  # fmt: skip
    """Every decision for a job, with its reason.

    Args:
        job: a spec, or the path of one.
        hardware: facts, or the path of recorded ones; those of this machine if None.
        workload: facts of network and data; without them some rows are provisional.
        plain: everything off.

    Raises:
        SpecError: if the spec or the facts are wrong, or the spec asks for what cannot be had.
    """
    if isinstance(hardware, str | Path):
        hardware = load(Path(hardware))
    asked = job if isinstance(job, Job) else spec.load(job)
    return plans.resolve(asked, hardware or detect(Path("runs")), workload, plain=plain)
