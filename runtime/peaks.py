"""Peaks: the command `memory`: how much memory a job takes at the peak, by micro-batch, predicted and measured.

The parent decides and starts a child under the plan, as for a training. No run folder is touched.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from runtime import guard, signals, spec, supervise
from runtime import plan as plans
from runtime.detect import detect
from runtime.files import storage_error, write_json


@dataclass(frozen=True)
class Request:
    """What `drivetrain memory` was asked."""

    spec: Path
    assignments: Sequence[str] = ()
    output: Path | None = None
    """Folder for picture and numbers; runs/memory-<name> if None."""


def memory(request: Request) -> int:
    """Measure; returns the exit code.

    Raises:
        DrivetrainError: for everything that is wrong before it starts.
    """
    signals.stop_early()
    job = spec.load(request.spec, request.assignments)
    output = request.output or Path("runs") / f"memory-{job.name}"
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise storage_error(output, error) from None
    machine = guard.admitted(detect(output), job.limits.gpus)
    plan = plans.resolve(job, machine)
    write_json(output / "hardware.json", machine.to_json())
    write_json(output / "plan.json", plan.to_json())
    command = [sys.executable, "-m", "runtime.memory_test", str(output), str(request.spec)]
    for assignment in request.assignments:
        command += ["--set", assignment]
    with signals.forwarding() as forward:
        return supervise.child(command, plan.environment(machine), forward)
