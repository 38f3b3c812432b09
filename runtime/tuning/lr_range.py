"""`drivetrain find-lr`: a learning-rate range test (Smith 2017) on the assembled run, whose weights are discarded.

The parent makes the plan and starts a child under it, as for a training. No run folder is touched.
"""

from __future__ import annotations

from dataclasses import dataclass

from runtime.errors import SpecError
from runtime.plan import plan as plans
from runtime.plan.plan_table import render
from runtime.system.console import console
from runtime.tuning import measuring_child
from runtime.tuning.measuring_request import MeasuringRequest


@dataclass(frozen=True)
class LrRangeRequest(MeasuringRequest):
    """The options of `drivetrain find-lr`."""

    command = "find-lr"
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
    job, machine, output, source = request.begin()
    plan = plans.resolve(job, machine)
    console().print(render(plan, job, machine))
    words = (repr(request.lowest), repr(request.highest), str(request.steps))
    module = "runtime.tuning.processes.lr_range"
    return measuring_child.measure(module, output, source, plan, machine, words)
