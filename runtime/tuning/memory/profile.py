"""`drivetrain memory`: the peak memory of a job by micro-batch, predicted and measured.

The parent makes the plan and starts a child under it, as for a training. No run folder is touched.
"""

from __future__ import annotations

from dataclasses import dataclass

from runtime.plan import plan as plans
from runtime.tuning import measuring_child
from runtime.tuning.measuring_request import MeasuringRequest


@dataclass(frozen=True)
class MemoryRequest(MeasuringRequest):
    """The options of `drivetrain memory`."""

    command = "memory"


def memory(request: MemoryRequest) -> int:
    """Measure; returns the exit code.

    Raises:
        DrivetrainError: for every problem found before the measurement starts.
    """
    job, machine, output, source = request.begin()
    module = "runtime.tuning.processes.memory_profile"
    return measuring_child.measure(module, output, source, plans.resolve(job, machine), machine)
