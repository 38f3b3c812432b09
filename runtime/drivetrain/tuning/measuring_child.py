"""Runs the measuring programs of `tuning/processes` in a child with a plan: to their end, or step by step."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from drivetrain.hardware.facts import Hardware
from drivetrain.job import Job
from drivetrain.job_spec.spec_source import SpecSource
from drivetrain.plan.plan import Plan
from drivetrain.system import child_process, signals
from drivetrain.system.child_process import Worker
from drivetrain.system.console import say, say_error
from drivetrain.system.files import read_json, write_json
from drivetrain.system.run_files import RunFiles
from drivetrain.system.signals import Signals
from drivetrain.tuning import process_death
from drivetrain.tuning.paired_timing import TimedBlock

PACKAGE = "drivetrain.tuning.processes"
NOTHING: Mapping[str, object] = {}
RESULT = "result.json"
"""File in the folder with the result of a program for its parent."""


class MeasurementEnded(SystemExit):
    """A measuring program has failed and printed the reason; its exit code also ends the command."""


def make_command(program: str, folder: Path, source: SpecSource, request: Mapping[str, object] = NOTHING) -> list[str]:
    """Make the command line of a measuring program."""
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
        program: name of its file.
        folder: folder for hardware, plan and results.
        plan: plan with threads, OpenMP runtime and allocator.
        request: other arguments of the program.
    """
    RunFiles(folder).write_json("hardware.json", machine.to_json())
    RunFiles(folder).write_json("plan.json", plan.to_json())
    command = make_command(program, folder, source, request)
    with signals.forward_signals() as forward:
        code = child_process.run_child(command, plan.environment(machine), forward)
    if code in signals.CRASH_EXIT_CODES and not forward.sent:
        error = process_death.make_error(process_death.describe(folder, code, f"{PACKAGE}.{program}"), plan)
        say_error(error)
        return error.exit_code
    return code


def measure_result(program: str, source: SpecSource, plan: Plan, machine: Hardware) -> Any:
    """Run a measuring program in a temporary folder; returns its stored result.

    Raises:
        MeasurementEnded: if it failed.
        Stopped: if a signal arrived in the meantime.
    """
    with tempfile.TemporaryDirectory(prefix="measure-") as scratch:
        code = measure(program, Path(scratch), source, plan, machine)
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
    answer: Callable[[Any], None] = say
    """Function that sends a line to the parent, in a program that answers requests."""

    def store(self, result: object) -> None:
        """Store a result for the parent, which called `measure_result`."""
        write_json(self.folder / RESULT, result)


@dataclass(frozen=True)
class VariantReady:
    """Report of a variant that is ready."""

    numbers: list[tuple[float, float]]
    """Loss and gradient norm of the first steps."""
    first: float
    """Seconds of the first step, which includes compilation."""
    step: float
    """Approximate seconds of a normal step."""
    batch: float
    """Mean number of samples per step."""
    notes: list[str]


class RunningVariant(Worker):
    """A running variant; raises ChildEnded if it dies in its first steps."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        super().__init__(command, environment, log)
        self.peak = 0
        try:
            answer = self.read_answer()
        except BaseException:
            self.close()
            raise
        numbers = [(loss, norm) for loss, norm in answer["numbers"]]
        self.ready = VariantReady(numbers, answer["first"], answer["step"], answer["batch"], answer["notes"])

    def time_steps(self, count: int) -> TimedBlock:
        """Time a block of steps; raises ChildEnded if the variant has died."""
        answer = self.ask(count)
        return TimedBlock(count, answer["seconds"], answer["waited"])

    def read_answer(self) -> Any:
        """Read the next answer, and update the peak memory from it."""
        answer = super().read_answer()
        self.peak = max(self.peak, answer["peak"])
        return answer


class VariantPool:
    """Starts variants, and stops all of them at the end.

    Args:
        scratch: folder with hardware.json, for plans and logs.
    """

    def __init__(self, machine: Hardware, scratch: Path, source: SpecSource) -> None:
        self.machine, self.scratch, self.source = machine, scratch, source
        self.variants: list[RunningVariant] = []
        self.compile_cache: str | None = None
        self.no_dropout = False
        """Whether losses are compared without dropout."""

    def __enter__(self) -> VariantPool:
        return self

    def __exit__(self, *_: object) -> None:
        for variant in self.variants:
            variant.close()
        if self.compile_cache:
            shutil.rmtree(self.compile_cache, ignore_errors=True)

    def start(self, plan: Plan, assignments: Sequence[str] = ()) -> RunningVariant:
        """Start a variant and wait until its first steps are done; raises ChildEnded if it dies before."""
        name = f"arm-{len(self.variants)}"
        plan_file = self.scratch / f"{name}.json"
        write_json(plan_file, plan.to_json())
        source = replace(self.source, assignments=[*self.source.assignments, *assignments])
        request = {"plan": str(plan_file), "no_dropout": self.no_dropout}
        command = make_command("variant", self.scratch, source, request)
        environment = child_process.build_environment(self._environment(plan))
        variant = RunningVariant(command, environment, self.scratch / f"{name}.log")
        self.variants.append(variant)
        return variant

    def _environment(self, plan: Plan) -> dict[str, str]:
        """Return the plan's environment with an empty compile cache, so earlier runs do not change the measured compile
        time.
        """
        environment = plan.environment(self.machine)
        if "TORCHINDUCTOR_CACHE_DIR" in environment:
            self.compile_cache = self.compile_cache or tempfile.mkdtemp(prefix="bench-", dir=self.machine.storage.cache)
            environment["TORCHINDUCTOR_CACHE_DIR"] = self.compile_cache
        return environment
