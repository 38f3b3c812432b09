"""`drivetrain bench`: what each optimization of a job's plan gains here, on the job's network and batches.

    final plan (in a child) -> ablation (each variant a child, timed in turn) -> table, bench.json, bench.png

Plain first, then each optimization added to the ones before, then all without each. Every variant is a process of its
own under its own plan, so that threads, OpenMP runtime and allocator are measured, too. The parent does not load torch.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from runtime import optimizations
from runtime.errors import SpecError
from runtime.hardware.facts import Hardware
from runtime.job import Job
from runtime.job_spec.spec_source import SpecSource
from runtime.plan import plan as plans
from runtime.system import signals
from runtime.system.console import say, say_aside
from runtime.tuning import measuring_child
from runtime.tuning.bench import results
from runtime.tuning.bench.ablation import climb
from runtime.tuning.bench.variant import VariantPool
from runtime.tuning.measuring_request import MeasuringRequest

__all__ = ["BenchRequest", "bench"]


@dataclass(frozen=True)
class BenchRequest(MeasuringRequest):
    """The options of `drivetrain bench`."""

    command = "bench"
    against: Sequence[str] = ()
    """Settings of a variant of the job that is compared at the end."""
    rounds: int = 8
    json: bool = False


def bench(request: BenchRequest) -> int:
    """Measure the ablation, print it and write it; returns the exit code.

    Raises:
        DrivetrainError: for every problem found before a variant starts.
    """
    if request.rounds < 3:
        raise SpecError(f"--rounds {request.rounds}", "3 or more", "8 paired measurements give a usable interval")
    if request.against:
        SpecSource(request.spec, [*request.assignments, *request.against]).load()
    job, machine, output, source = request.begin()
    with tempfile.TemporaryDirectory(prefix="bench-") as scratch:
        return _measured(request, job, machine, output, Path(scratch), source)


def _measured(
    request: BenchRequest, job: Job, machine: Hardware, output: Path, scratch: Path, source: SpecSource
) -> int:
    code, plan = _settled(source, job, machine, scratch)
    if plan is None:
        return code
    tell = _told_aside if request.json else _told
    with VariantPool(machine, scratch, source) as shop:
        shop.quiet = _redrawn(plan)
        ladder = climb(plan, shop.side, request.rounds, tell, request.against)
    results.write(ladder, plan, job, machine, request, output)
    results.printed(ladder, plan, job, machine, output, as_json=request.json)
    return 0


def _redrawn(plan: plans.Plan) -> bool:
    """Whether variants have different dropout masks. Not if one compiles: compiled without dropout, it would be
    compiled again with it.
    """
    names = {row.name for row in plan.enabled()}
    return "compile" not in names and any(one.redraws for one in optimizations.every() if one.name in names)


def _settled(source: SpecSource, job: Job, machine: Hardware, scratch: Path) -> tuple[int, plans.Plan | None]:
    """The plan that `train` would use, finalized by a child that loads model and data; None if the child fails."""
    first = plans.resolve(job, machine)
    code = measuring_child.measure("runtime.tuning.processes.final_plan", scratch, source, first, machine)
    signals.stop_early()
    return code, plans.load(scratch / "plan.json") if code == 0 else None


def _told(text: str) -> None:
    say(text)


def _told_aside(text: str) -> None:
    say_aside(text)
