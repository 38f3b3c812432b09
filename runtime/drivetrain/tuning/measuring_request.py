"""Runs the `drivetrain bench` commands that measure a job without training it: speed, learning rate and memory.

The parent makes the plan and starts a child with it, as for a training. No run folder is changed.
"""

from __future__ import annotations

from collections.abc import Sequence
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
    """Options of `drivetrain bench KIND`."""

    kind: str
    """Name of the measuring program in `tuning/processes`."""
    spec: Path
    assignments: Sequence[str] = ()
    against: Sequence[str] = ()
    """`bench speed`: settings of a variant of the job that is compared at the end."""


def measure(request: MeasuringRequest) -> int:
    """Measure in a child with the job's plan, into runs/bench-KIND-NAME; returns the exit code.

    Raises:
        DrivetrainError: if a problem is found before the measurement starts.
    """
    signals.stop_early()
    source = SpecSource(request.spec, request.assignments).read()
    job = source.load()
    batch_size.refuse_auto(job, f"bench {request.kind}")
    if request.against:
        SpecSource(request.spec, [*request.assignments, *request.against]).load()
    folder = Path("runs", f"bench-{request.kind}-{job.name}")
    make_folder(folder)
    machine = device_check.select_devices(detect(folder), job.limits.gpus)
    plan = plans.resolve(job, machine)
    options = {"against": list(request.against)}
    return measuring_child.measure(request.kind, folder, source.copy_to(folder, job), plan, machine, options)
