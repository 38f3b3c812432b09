"""Runs a variant from the parent's side: a child process that trains steps on request under a plan."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any

from drivetrain.hardware.facts import Hardware
from drivetrain.job_spec.spec_source import SpecSource
from drivetrain.plan.plan import Plan
from drivetrain.system import child_process, signals
from drivetrain.system.files import write_json
from drivetrain.tuning.paired_timing import TimedBlock


class Failed(Exception):
    """A variant could not start, or has died; the text is its last message."""


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


class RunningVariant:
    """A running variant."""

    def __init__(self, child: subprocess.Popen[bytes], log: Path) -> None:
        self.child, self.log, self.peak = child, log, 0
        answer = self._read_answer()
        numbers = [(loss, norm) for loss, norm in answer["numbers"]]
        self.ready = VariantReady(numbers, answer["first"], answer["step"], answer["batch"], answer["notes"])

    def time_steps(self, count: int) -> TimedBlock:
        """Time a block of steps.

        Raises:
            Failed: if the variant has died.
        """
        assert self.child.stdin is not None
        try:
            self.child.stdin.write(f"{count}\n".encode())
            self.child.stdin.flush()
        except OSError:
            raise Failed(self._describe_end()) from None
        answer = self._read_answer()
        return TimedBlock(count, answer["seconds"], answer["waited"])

    def close(self) -> None:
        """Stop the variant."""
        self.child.kill()
        self.child.wait()
        for pipe in (self.child.stdin, self.child.stdout):
            if pipe is not None:
                pipe.close()

    def _read_answer(self) -> dict[str, Any]:
        assert self.child.stdout is not None
        line = self.child.stdout.readline()
        if not line:
            self.child.wait()
            raise Failed(self._describe_end())
        answer: dict[str, Any] = json.loads(line)
        self.peak = max(self.peak, answer["peak"])
        return answer

    def _describe_end(self) -> str:
        if (signal := signals.CRASH_EXIT_CODES.get(128 - (self.child.poll() or 0))) is not None:
            return f"crashed with {signal} inside a kernel"
        lines = self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return lines[-1].strip()[:200] if lines else f"exited with code {self.child.poll()}"


class VariantPool:
    """Starts variants, and stops them all at the end.

    Args:
        machine: the hardware.
        scratch: a folder with hardware.json, for plans and logs.
        source: the spec.
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for variant in self.variants:
            variant.close()
        if self.compile_cache:
            shutil.rmtree(self.compile_cache, ignore_errors=True)

    def start(self, plan: Plan, assignments: Sequence[str] = (), timeout: float | None = None) -> RunningVariant:
        """Start a variant and wait until its first steps are done.

        Raises:
            Failed: if it does not get that far, or not within `timeout` seconds.
        """
        name = f"arm-{len(self.variants)}"
        write_json(self.scratch / f"{name}.json", plan.to_json())
        command = [
            sys.executable,
            "-m",
            "drivetrain.tuning.processes.variant",
            str(self.scratch),
            str(self.scratch / f"{name}.json"),
            child_process.format_path_argument(self.source.spec),
            *replace(self.source, assignments=[*self.source.assignments, *assignments]).options(),
            *(["--quiet"] if self.no_dropout else []),
        ]
        log = self.scratch / f"{name}.log"
        with log.open("wb") as file:
            child = subprocess.Popen(
                command,
                env=child_process.build_environment(self._environment(plan)),
                stdin=subprocess.PIPE,
                stderr=file,
                stdout=subprocess.PIPE,
                process_group=0,
                preexec_fn=functools.partial(signals.die_with_parent, os.getpid()),
            )
        deadline = threading.Timer(timeout or 0.0, child.kill)
        if timeout is not None:
            deadline.start()
        try:
            variant = RunningVariant(child, log)
        except BaseException:
            child.kill()
            child.wait()
            raise
        finally:
            deadline.cancel()
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
