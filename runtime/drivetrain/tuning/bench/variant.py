"""Runs a variant from the parent's side: a child process that trains steps on request under a plan."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from drivetrain.hardware.facts import Hardware
from drivetrain.job_spec.spec_source import SpecSource
from drivetrain.plan.plan import Plan
from drivetrain.system import child_process
from drivetrain.system.child_process import Worker
from drivetrain.system.files import write_json
from drivetrain.tuning import measuring_child
from drivetrain.tuning.paired_timing import TimedBlock


@dataclass(frozen=True)
class VariantReady:
    """What a variant reports when it is ready."""

    numbers: list[tuple[float, float]]
    """Loss and gradient norm of the first steps."""
    first: float
    """Seconds of the very first step, which includes compilation."""
    step: float
    """Approximate seconds of a normal step."""
    batch: float
    """Mean number of samples per step."""
    notes: list[str]


class RunningVariant(Worker):
    """A running variant; raises ChildEnded if it does not get through its first steps within `timeout` seconds."""

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], log: Path, timeout: float | None = None
    ) -> None:
        super().__init__(command, environment, log)
        self.peak = 0
        try:
            answer = self.read_answer(timeout)
        except BaseException:
            self.close()
            raise
        numbers = [(loss, norm) for loss, norm in answer["numbers"]]
        self.ready = VariantReady(numbers, answer["first"], answer["step"], answer["batch"], answer["notes"])

    def time_steps(self, count: int) -> TimedBlock:
        """Time a block of steps; raises ChildEnded if the variant has died."""
        answer = self.ask(count)
        return TimedBlock(count, answer["seconds"], answer["waited"])

    def read_answer(self, timeout: float | None = None) -> Any:
        """The next answer, which also says how much memory was used."""
        answer = super().read_answer(timeout)
        self.peak = max(self.peak, answer["peak"])
        return answer


class VariantPool:
    """Starts variants, and stops them all at the end.

    Args:
        scratch: a folder with hardware.json, for plans and logs.
        keep: whether variants use the compile cache of all runs, and not an empty one.
    """

    def __init__(
        self, machine: Hardware, scratch: Path, source: SpecSource, *, shares_compile_cache: bool = False
    ) -> None:
        self.shares_compile_cache = shares_compile_cache
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

    def start(self, plan: Plan, assignments: Sequence[str] = (), timeout: float | None = None) -> RunningVariant:
        """Start a variant and wait until its first steps are done.

        Raises:
            ChildEnded: if it does not get that far, or not within `timeout` seconds.
        """
        name = f"arm-{len(self.variants)}"
        plan_file = self.scratch / f"{name}.json"
        write_json(plan_file, plan.to_json())
        source = replace(self.source, assignments=[*self.source.assignments, *assignments])
        request = {"plan": str(plan_file), "no_dropout": self.no_dropout}
        command = measuring_child.make_command("variant", self.scratch, source, request)
        environment = child_process.build_environment(self._environment(plan))
        variant = RunningVariant(command, environment, self.scratch / f"{name}.log", timeout)
        self.variants.append(variant)
        return variant

    def _environment(self, plan: Plan) -> dict[str, str]:
        """The plan's environment, with an empty compile cache: earlier runs should not change the measured compile
        time.
        """
        environment = plan.environment(self.machine)
        if not self.shares_compile_cache and "TORCHINDUCTOR_CACHE_DIR" in environment:
            self.compile_cache = self.compile_cache or tempfile.mkdtemp(prefix="bench-", dir=self.machine.storage.cache)
            environment["TORCHINDUCTOR_CACHE_DIR"] = self.compile_cache
        return environment
