"""Runs the measuring programs of `tuning/processes` in a child, under a plan."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from drivetrain.errors import MeasurementEnded
from drivetrain.hardware.facts import Hardware
from drivetrain.job import Job
from drivetrain.job_spec.spec_source import SpecSource
from drivetrain.plan.plan import Plan
from drivetrain.system import child_process, signals
from drivetrain.system.console import say, say_error
from drivetrain.system.files import read_json, write_json
from drivetrain.system.run_files import RunFiles
from drivetrain.system.signals import Signals
from drivetrain.tuning import process_death

PACKAGE = "drivetrain.tuning.processes"
NOTHING: Mapping[str, object] = {}
RESULT = "result.json"
"""In the folder: what a program has measured, for its parent."""


def make_command(program: str, folder: Path, source: SpecSource, request: Mapping[str, object] = NOTHING) -> list[str]:
    """The command line of a measuring program."""
    folder_word, spec_word = map(child_process.format_path_argument, (folder, source.spec))
    return [sys.executable, "-m", PACKAGE, program, folder_word, json.dumps(request), spec_word, *source.options()]


def measure(
    program: str,
    folder: Path,
    source: SpecSource,
    plan: Plan,
    machine: Hardware,
    request: Mapping[str, object] = NOTHING,
) -> int:
    """Run a measuring program; returns its exit code.

    Args:
        program: the name of its file.
        folder: gets hardware, plan and results.
        plan: sets threads, OpenMP runtime and allocator.
        request: what the program takes beside them.
    """
    RunFiles(folder).write_json("hardware.json", machine.to_json())
    RunFiles(folder).write_json("plan.json", plan.to_json())
    command = make_command(program, folder, source, request)
    with signals.forward_signals() as forward:
        code = child_process.run_child(command, plan.environment(machine), forward)
        if code not in signals.CRASH_EXIT_CODES or forward.sent:
            return code
        # A kernel that crashes is one that an optimization has chosen: measured once more without them.
        crash = process_death.describe(folder, code, f"{PACKAGE}.{program}")
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


def measure_result(program: str, source: SpecSource, plan: Plan, machine: Hardware) -> Any:
    """Run a measuring program in a folder of its own; returns what it has stored.

    Raises:
        MeasurementEnded: if it failed.
        Stopped: if a signal came meanwhile.
    """
    with tempfile.TemporaryDirectory(prefix="measure-") as scratch:
        code = measure(program, Path(scratch), source, plan, machine)
        signals.stop_early()
        if code:
            raise MeasurementEnded(code)
        return read_json(Path(scratch) / RESULT)


@dataclass(frozen=True)
class MeasuringCall:
    """What a measuring program was called with."""

    folder: Path
    source: SpecSource
    job: Job
    signals: Signals
    request: Mapping[str, Any] = field(default_factory=dict)

    def store(self, result: object) -> None:
        """Hand a result to the parent, which called `measure_result`."""
        write_json(self.folder / RESULT, result)
