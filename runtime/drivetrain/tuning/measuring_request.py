"""Commands that measure a job without training it: `bench lr` and `bench memory` here, `bench speed` in its own folder.

The parent makes the plan and starts a child with it, as for a training. No run folder is changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from drivetrain.errors import SpecError
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

    kind: ClassVar[str]
    """What is measured, as in `drivetrain bench KIND`: the name of the measuring program."""
    spec: Path
    assignments: Sequence[str] = ()
    output: Path | None = None
    """Folder for the numbers; runs/bench-KIND-<name> if None."""

    def measure(self, options: Mapping[str, object]) -> tuple[int, Path]:
        """Measure in a child with the job's plan, with these options; returns its exit code and the folder.

        Raises:
            DrivetrainError: if the spec, the requested devices or the folder cannot be used.
        """
        signals.stop_early()
        source = SpecSource(self.spec, self.assignments).read()
        job = source.load()
        batch_size.refuse_auto(job, f"bench {self.kind}")
        folder = self.output or Path("runs") / f"bench-{self.kind}-{job.name}"
        make_folder(folder)
        machine = device_check.select_devices(detect(folder), job.limits.gpus)
        plan = plans.resolve(job, machine)
        return measuring_child.measure(self.kind, folder, source.copy_to(folder, job), plan, machine, options), folder


@dataclass(frozen=True)
class LrRangeRequest(MeasuringRequest):
    """Options of `drivetrain bench lr`, a learning-rate range test (Smith 2017)."""

    kind = "lr"
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
    options = {"lowest": request.lowest, "highest": request.highest, "steps": request.steps}
    return request.measure(options)[0]


@dataclass(frozen=True)
class MemoryRequest(MeasuringRequest):
    """Options of `drivetrain bench memory`."""

    kind = "memory"


def measure_memory(request: MemoryRequest) -> int:
    """Measure the peak memory by micro-batch; returns the exit code.

    Raises:
        DrivetrainError: if a problem is found before the measurement starts.
    """
    return request.measure({})[0]
