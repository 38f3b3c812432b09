"""Runs the `drivetrain bench` commands that measure a job without training it.

The parent makes the plan and starts a child with it, as for a training. No run folder is changed. `bench speed` extends
this in `tuning/bench`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from drivetrain.hardware import device_check
from drivetrain.hardware.detect import detect
from drivetrain.job_spec.spec_source import SpecSource
from drivetrain.plan import plan as plans
from drivetrain.system import signals
from drivetrain.system.files import make_folder
from drivetrain.tuning import batch_size, measuring_child


@dataclass(frozen=True)
class MeasuringRequest:
    """Options shared by these commands."""

    kind: str
    """Name of the measuring program, as in `drivetrain bench KIND`."""
    spec: Path
    assignments: Sequence[str] = ()

    def measure(self, options: Mapping[str, object]) -> int:
        """Measure in a child with the job's plan and these options, into runs/bench-KIND-<name>; returns the exit code."""
        signals.stop_early()
        source = SpecSource(self.spec, self.assignments).read()
        job = source.load()
        batch_size.refuse_auto(job, f"bench {self.kind}")
        folder = Path("runs", f"bench-{self.kind}-{job.name}")
        make_folder(folder)
        machine = device_check.select_devices(detect(folder), job.limits.gpus)
        plan = plans.resolve(job, machine)
        return measuring_child.measure(self.kind, folder, source.copy_to(folder, job), plan, machine, options)


def measure(request: MeasuringRequest) -> int:
    """Measure the loss at growing learning rates (Smith 2017), or the memory by micro-batch; returns the exit code."""
    return request.measure({})
