"""Measuring programs of `tuning/processes`: how a command runs one in a child, under a plan, and what each begins with."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drivetrain.errors import DrivetrainError
from drivetrain.hardware.facts import Hardware
from drivetrain.job import Job
from drivetrain.job_spec import spec_source
from drivetrain.job_spec.spec_source import SpecSource
from drivetrain.plan.plan import Plan
from drivetrain.system import child_process, interpreter, signals
from drivetrain.system.console import guard_output, say, say_error
from drivetrain.system.files import read_json, write_json
from drivetrain.system.run_files import RunFiles
from drivetrain.system.signals import Signals, ignore_signals_after, raise_stopped
from drivetrain.training.phase_timer import PhaseTimer
from drivetrain.tuning import process_death

if TYPE_CHECKING:
    from drivetrain.training.run import Run
    from drivetrain.tuning.memory.micro_batch import MicroBatchSearch

RESULT = "result.json"
"""In the folder: what a program has measured, for its parent."""


def measure(
    module: str,
    folder: Path,
    source: SpecSource,
    plan: Plan,
    machine: Hardware,
    extra_arguments: Sequence[str] = (),
) -> int:
    """Run a measuring module; returns its exit code.

    Args:
        module: called with the folder, the spec and `extra_arguments`.
        folder: holds hardware and plan, and gets the results.
        plan: sets threads, OpenMP runtime and allocator.
        extra_arguments: what the module takes beside them.
    """
    RunFiles(folder).write_json("hardware.json", machine.to_json())
    RunFiles(folder).write_json("plan.json", plan.to_json())
    paths = map(child_process.format_path_argument, (folder, source.spec))
    command = [sys.executable, "-m", module, *paths, *extra_arguments, *source.options()]
    with signals.forward_signals() as forward:
        code = child_process.run_child(command, plan.environment(machine), forward)
        if code not in signals.CRASH_EXIT_CODES or forward.sent:
            return code
        # A kernel that crashes is one that an optimization has chosen: measured once more without them.
        crash = process_death.describe(folder, code, module)
        safe_plan = process_death.turn_optimizations_off(plan, crash)
        if safe_plan:
            say(f"crash: {crash}; {process_death.describe_repetition(plan, 'measured again')}")
            RunFiles(folder).write_json("plan.json", safe_plan.to_json())
            code = child_process.run_child(command, safe_plan.environment(machine), forward)
    if code not in signals.CRASH_EXIT_CODES:
        return code
    error = process_death.make_final_error(crash)
    say_error(error)
    return error.exit_code


def measure_result(module: str, source: SpecSource, plan: Plan, machine: Hardware) -> tuple[int, Any]:
    """Run a measuring module in a folder of its own; returns its exit code, and what it has stored if that is 0.

    Raises:
        Stopped: if a signal came meanwhile.
    """
    with tempfile.TemporaryDirectory(prefix="measure-") as scratch:
        code = measure(module, Path(scratch), source, plan, machine)
        signals.stop_early()
        return code, None if code else read_json(Path(scratch) / RESULT)


@dataclass(frozen=True)
class MeasuringCall:
    """What a measuring program was called with."""

    options: argparse.Namespace
    source: SpecSource
    job: Job
    signals: Signals

    def load_search(self) -> MicroBatchSearch:
        """Data, network and plan before anything is measured."""
        from drivetrain.tuning import assembly

        return assembly.load_search(self.options.folder, self.job, self.signals, PhaseTimer())

    def assemble_run(self, source: SpecSource | None = None) -> Run:
        """The run that `train` would train; with the source, process settings are measured, too."""
        from drivetrain.tuning import assembly

        return assembly.assemble_run(self.options.folder, self.job, self.signals, PhaseTimer(), source)

    def store(self, result: object) -> None:
        """Hand a result to the parent, which called `measure_result`."""
        write_json(self.options.folder / RESULT, result)


def make_parser() -> argparse.ArgumentParser:
    """The parser: FOLDER, SPEC, then what the program adds, and values that override the spec."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    spec_source.add_options(parser)
    return parser


def run_program(measure: Callable[[MeasuringCall], None], arguments: argparse.ArgumentParser | None = None) -> None:
    """Measure, and end this process with the exit code; a signal stops the measurement, and an error of ours is printed."""
    options = (arguments or make_parser()).parse_args()
    guard_output()
    code = 0
    try:
        with raise_stopped(), ignore_signals_after():
            source = SpecSource.from_arguments(options)
            measure(MeasuringCall(options, source, source.load(), Signals()))
    except DrivetrainError as error:
        say_error(error)
        code = error.exit_code
    interpreter.exit_process(code)
