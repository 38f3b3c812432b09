"""What every command that measures a job without training it begins with: find-lr, memory, bench."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from runtime.hardware import calibration_file, device_check
from runtime.hardware.detect import detect
from runtime.hardware.facts import Hardware
from runtime.job import Job
from runtime.job_spec.spec_source import SpecSource
from runtime.system import signals
from runtime.system.files import make_folder
from runtime.tuning import batch_size


@dataclass(frozen=True)
class MeasuringRequest:
    """The options that these commands share."""

    command: ClassVar[str]
    """As in `drivetrain COMMAND`."""
    spec: Path
    assignments: Sequence[str] = ()
    output: Path | None = None
    """Folder for picture and numbers; runs/COMMAND-<name> if None."""

    def begin(self) -> tuple[Job, Hardware, Path, SpecSource]:
        """The job, the hardware that it may use, the output folder, which exists then, and the spec for child processes.

        Raises:
            DrivetrainError: if the spec, the requested devices or the folder cannot be used.
        """
        signals.stop_early()
        source = SpecSource(self.spec, self.assignments).read()
        job = source.load()
        batch_size.fixed(job, self.command)
        output = self.output or Path("runs") / f"{self.command}-{job.name}"
        make_folder(output)
        machine = device_check.select_devices(detect(output), job.limits.gpus)
        return job, calibration_file.attached(machine), output, source.copy_to(output, job)
