"""Commands that measure a job without training it: find-lr and memory here, bench in its own folder.

The parent makes the plan and starts a child with it, as for a training. No run folder is changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from drivetrain.errors import SpecError
from drivetrain.hardware import device_check
from drivetrain.hardware.detect import detect
from drivetrain.hardware.facts import Hardware
from drivetrain.job import Job
from drivetrain.job_spec.spec_source import SpecSource
from drivetrain.plan import plan as plans
from drivetrain.plan.plan_table import render
from drivetrain.system import signals
from drivetrain.system.console import open_console
from drivetrain.system.files import make_folder
from drivetrain.tuning import batch_size, measuring_child


@dataclass(frozen=True)
class MeasuringRequest:
    """Options shared by these commands."""

    command: ClassVar[str]
    """Name of the command, as in `drivetrain COMMAND`."""
    spec: Path
    assignments: Sequence[str] = ()
    output: Path | None = None
    """Folder for pictures and numbers; runs/COMMAND-<name> if None."""

    def load(self) -> tuple[Job, Hardware, Path, SpecSource]:
        """Load the job; returns it with its hardware, the created output folder, and the spec for child processes.

        Raises:
            DrivetrainError: if the spec, the requested devices or the folder cannot be used.
        """
        signals.stop_early()
        source = SpecSource(self.spec, self.assignments).read()
        job = source.load()
        batch_size.refuse_auto(job, self.command)
        output = self.output or Path("runs") / f"{self.command}-{job.name}"
        make_folder(output)
        machine = device_check.select_devices(detect(output), job.limits.gpus)
        return job, machine, output, source.copy_to(output, job)


@dataclass(frozen=True)
class LrRangeRequest(MeasuringRequest):
    """Options of `drivetrain find-lr`, a learning-rate range test (Smith 2017)."""

    command = "find-lr"
    lowest: float = 1e-6
    highest: float = 10.0
    steps: int = 100


def find_lr(request: LrRangeRequest) -> int:
    """Run the test on the assembled run, whose weights are discarded; returns the exit code.

    Raises:
        DrivetrainError: if a problem is found before the test starts.
    """
    if not 0 < request.lowest < request.highest:
        raise SpecError(
            f"--lowest {request.lowest:g} --highest {request.highest:g}", "0 < lowest < highest", "change one of them"
        )
    if request.steps < 20:
        raise SpecError(f"--steps {request.steps}", "20 or more", "100 mini-batches give a smooth curve")
    job, machine, output, source = request.load()
    plan = plans.resolve(job, machine)
    open_console().print(render(plan, job, machine))
    options = {"lowest": request.lowest, "highest": request.highest, "steps": request.steps}
    return measuring_child.measure("lr_range", output, source, plan, machine, options)


@dataclass(frozen=True)
class MemoryRequest(MeasuringRequest):
    """Options of `drivetrain memory`."""

    command = "memory"


def measure_memory(request: MemoryRequest) -> int:
    """Predict and measure the peak memory by micro-batch; returns the exit code.

    Raises:
        DrivetrainError: if a problem is found before the measurement starts.
    """
    job, machine, output, source = request.load()
    return measuring_child.measure("memory_profile", output, source, plans.resolve(job, machine), machine)
