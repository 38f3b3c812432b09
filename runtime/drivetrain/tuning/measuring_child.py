"""Runs the measuring programs of `tuning/processes` in a child with a plan."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from drivetrain.errors import Replanned
from drivetrain.hardware.facts import Hardware
from drivetrain.job import Job
from drivetrain.job_spec.spec_source import SpecSource
from drivetrain.plan.plan import Plan, read_plan
from drivetrain.system import child_process, signals
from drivetrain.system.console import say_error
from drivetrain.system.files import read_json, write_json
from drivetrain.system.run_files import PLAN_FILE, RunFiles
from drivetrain.system.signals import Signals
from drivetrain.tracking.event_log import EventLog
from drivetrain.tuning import process_death

PACKAGE = "drivetrain.tuning.processes"
NO_REQUEST: Mapping[str, object] = {}
MEASURED = "is_measured"
"""Key of a request: whether an earlier process has measured the plan in the folder."""
RESULT = "result.json"
"""File in the folder with the result of a program for its parent."""


class MeasurementEnded(SystemExit):
    """A measuring program has failed and printed the reason; the command ends with the same exit code."""


def make_command(
    program: str, folder: Path, source: SpecSource, request: Mapping[str, object] = NO_REQUEST
) -> list[str]:
    """Make the command line of a measuring program."""
    format_path = child_process.format_path_argument
    arguments = [program, format_path(folder), json.dumps(request), format_path(source.spec), *source.options()]
    return [sys.executable, "-m", PACKAGE, *arguments]


def measure(
    program: str,
    folder: Path,
    source: SpecSource,
    plan: Plan,
    machine: Hardware,
    request: Mapping[str, object] = NO_REQUEST,
    events: EventLog | None = None,
) -> int:
    """Run a measuring program with a plan; returns its exit code. `folder` gets hardware, plan and results.

    After a crash inside a kernel, it is run once more with the suspect optimizations off, if there is a log for `events`.
    """
    RunFiles(folder).write_json("hardware.json", machine.to_json())
    RunFiles(folder).write_json(PLAN_FILE, plan.to_json())
    with signals.forward_signals() as forward:
        for is_measured in (False, True):
            command = make_command(program, folder, source, {**request, MEASURED: is_measured})
            code = child_process.run_child(command, plan.environment(machine), forward)
            # After an interrupted compilation, a second process continues with the measured plan.
            if code != Replanned.exit_code:
                break
    if code in signals.CRASH_EXIT_CODES and not forward.sent:
        crash = process_death.describe(folder, code, f"{PACKAGE}.{program}")
        plan = read_plan(folder)  # the program has replaced the plan by one that suits data and network
        safe_plan = process_death.turn_optimizations_off(plan, crash) if events else None
        if events and safe_plan:
            events.add("crash", f"{crash}; {process_death.describe_repetition(plan, 'measured once more')}")
            return measure(program, folder, source, safe_plan, machine, request, events)
        error = process_death.make_error(crash, plan)
        say_error(error)
        return error.exit_code
    return code


def measure_result(program: str, source: SpecSource, plan: Plan, machine: Hardware, events: EventLog) -> Any:
    """Run a measuring program for a run in a temporary folder; returns its stored result.

    Raises:
        MeasurementEnded: if it failed.
        Stopped: if a signal arrived during the measurement.
    """
    with tempfile.TemporaryDirectory(prefix="measure-") as scratch:
        code = measure(program, Path(scratch), source, plan, machine, events=events)
        signals.stop_early()
        if code:
            raise MeasurementEnded(code)
        return read_json(Path(scratch) / RESULT)


@dataclass(frozen=True)
class MeasuringCall:
    """Arguments of a measuring program."""

    folder: Path
    source: SpecSource
    job: Job
    signals: Signals
    request: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_measured(self) -> bool:
        """Whether an earlier process has measured the plan in the folder."""
        return bool(self.request[MEASURED])

    def store_plan(self, plan: Plan) -> None:
        """Store the measured plan, so that the parent can name its optimizations after a crash."""
        RunFiles(self.folder).write_json(PLAN_FILE, plan.to_json())

    def store(self, result: object) -> None:
        """Store the result that `measure_result` returns in the parent."""
        write_json(self.folder / RESULT, result)
