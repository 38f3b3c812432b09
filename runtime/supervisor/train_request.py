"""What `drivetrain train` is asked to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from runtime.distributed.placement import ALONE, Options
from runtime.job_spec.spec_source import SpecSource
from runtime.supervisor.extended_run import ExtendRequest


@dataclass(frozen=True)
class TrainRequest:
    """The options of `drivetrain train`."""

    spec: Path
    assignments: Sequence[str] = ()
    runs: Path = Path("runs")
    plain: bool = False
    plan: Path | None = None
    new: bool = False
    extend: ExtendRequest | None = None
    """The finished run that this one continues."""
    trace: bool = False
    """Whether a few steps are profiled."""
    place: Options = ALONE
    """The options about several machines."""
    batch_size: int | None = None
    """The measured number in place of `train.batch_size: auto`; None until it has been measured."""
    folder: Path | None = None
    """Where relative paths of the spec start; its own folder if None."""
    code: Mapping[str, str] | None = None
    """SHA-256 by name of the only files of user code that may run; None allows those in the folder of the spec."""
    shown: Path | None = None
    """The plan of another run, which the same command has printed; then only the differences are."""

    copy: Path | None = None
    """Copies of the job file and the user's code, which are read instead."""
    content: bytes | None = None
    """What the job file says; None until it is read."""

    def source(self) -> SpecSource:
        """The spec, for this process and its children."""
        return SpecSource(
            self.spec,
            self.assignments,
            self.batch_size,
            self.folder,
            self.code,
            copy=self.copy,
            content=self.content,
        )
