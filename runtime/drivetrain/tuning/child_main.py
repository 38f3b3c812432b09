"""What every measuring program of `tuning/processes` begins and ends with: its arguments, its job and its exit code."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from drivetrain.errors import DrivetrainError
from drivetrain.job import Job
from drivetrain.job_spec import spec_source
from drivetrain.job_spec.spec_source import SpecSource
from drivetrain.system.console import guard_output, say_error
from drivetrain.system.signals import Signals, ignore_signals_after, raise_stopped
from drivetrain.training.phase_timer import PhaseTimer

if TYPE_CHECKING:
    from drivetrain.training.run import Run
    from drivetrain.tuning.memory.micro_batch import MicroBatchSearch


@dataclass(frozen=True)
class MeasuringCall:
    """What a measuring program was called with."""

    options: argparse.Namespace
    source: SpecSource
    job: Job
    signals: Signals

    @property
    def folder(self) -> Path:
        """The folder with hardware.json and plan.json."""
        folder: Path = self.options.folder
        return folder

    def load_search(self) -> MicroBatchSearch:
        """Data, network and plan before anything is measured."""
        from drivetrain.tuning import assembly

        return assembly.load_search(self.folder, self.job, self.signals, PhaseTimer())

    def assemble_run(self, source: SpecSource | None = None) -> Run:
        """The run that `train` would train; with the source, process settings are measured, too."""
        from drivetrain.tuning import assembly

        return assembly.assemble_run(self.folder, self.job, self.signals, PhaseTimer(), source)


def make_parser(*paths: str) -> argparse.ArgumentParser:
    """The parser: FOLDER, further paths, SPEC, then what the program adds, and values that override the spec."""
    parser = argparse.ArgumentParser()
    for name in ("folder", *paths):
        parser.add_argument(name, type=Path)
    spec_source.add_options(parser)
    return parser


def run(measure: Callable[[MeasuringCall], None], arguments: argparse.ArgumentParser) -> int:
    """The exit code of a measurement, which a signal stops; an error of ours is printed."""
    options = arguments.parse_args()
    guard_output()
    try:
        with raise_stopped(), ignore_signals_after():
            source = SpecSource.from_arguments(options)
            measure(MeasuringCall(options, source, source.load(), Signals()))
    except DrivetrainError as error:
        say_error(error)
        return error.exit_code
    return 0
