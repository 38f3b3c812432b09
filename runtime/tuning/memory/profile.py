"""`drivetrain memory`: the peak memory of a job by micro-batch, predicted and measured.

The parent makes the plan and starts a child under it, as for a training. No run folder is touched.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from runtime.hardware import device_check
from runtime.hardware.detect import detect
from runtime.job_spec import load as spec
from runtime.job_spec.spec_source import SpecSource
from runtime.plan import plan as plans
from runtime.system import signals
from runtime.system.files import make_folder
from runtime.tuning import batch_size, measuring_child


@dataclass(frozen=True)
class MemoryRequest:
    """The options of `drivetrain memory`."""

    spec: Path
    assignments: Sequence[str] = ()
    output: Path | None = None
    """Folder for picture and numbers; runs/memory-<name> if None."""


def memory(request: MemoryRequest) -> int:
    """Measure; returns the exit code.

    Raises:
        DrivetrainError: for every problem found before the measurement starts.
    """
    signals.stop_early()
    job = spec.load(request.spec, request.assignments)
    batch_size.fixed(job, "memory")
    output = request.output or Path("runs") / f"memory-{job.name}"
    make_folder(output)
    machine = device_check.select_devices(detect(output), job.limits.gpus)
    plan = plans.resolve(job, machine)
    source = SpecSource(request.spec, request.assignments)
    return measuring_child.measure("runtime.tuning.processes.memory_profile", output, source, plan, machine)
