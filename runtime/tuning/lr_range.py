"""`drivetrain find-lr`: a learning-rate range test (Smith 2017) on the assembled run, whose weights are discarded.

The parent makes the plan and starts a child under it, as for a training. No run folder is touched.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from runtime.errors import SpecError
from runtime.hardware import device_check
from runtime.hardware.detect import detect
from runtime.job_spec import load as spec
from runtime.job_spec.spec_source import SpecSource
from runtime.plan import plan as plans
from runtime.plan.plan_table import render
from runtime.system import signals
from runtime.system.console import console
from runtime.system.files import make_folder
from runtime.tuning import batch_size, measuring_child


@dataclass(frozen=True)
class LrRangeRequest:
    """The options of `drivetrain find-lr`."""

    spec: Path
    assignments: Sequence[str] = ()
    output: Path | None = None
    """Folder for picture and numbers; runs/find-lr-<name> if None."""
    lowest: float = 1e-6
    highest: float = 10.0
    steps: int = 100


def find_lr(request: LrRangeRequest) -> int:
    """Run the test; returns the exit code.

    Raises:
        DrivetrainError: for every problem found before the test starts.
    """
    if not 0 < request.lowest < request.highest:
        raise SpecError(
            f"--lowest {request.lowest:g} --highest {request.highest:g}", "0 < lowest < highest", "change one of them"
        )
    if request.steps < 20:
        raise SpecError(f"--steps {request.steps}", "20 or more", "100 mini-batches give a smooth curve")
    signals.stop_early()
    job = spec.load(request.spec, request.assignments)
    batch_size.fixed(job, "find-lr")
    output = request.output or Path("runs") / f"find-lr-{job.name}"
    make_folder(output)
    machine = device_check.select_devices(detect(output), job.limits.gpus)
    plan = plans.resolve(job, machine)
    console().print(render(plan, job, machine))
    words = (repr(request.lowest), repr(request.highest), str(request.steps))
    source = SpecSource(request.spec, request.assignments)
    return measuring_child.measure("runtime.tuning.processes.lr_range", output, source, plan, machine, words)
