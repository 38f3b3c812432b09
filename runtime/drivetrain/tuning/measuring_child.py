"""Runs a measuring program in a child process, under a plan as a trainer would run."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from drivetrain.hardware.facts import Hardware
from drivetrain.job_spec.spec_source import SpecSource
from drivetrain.plan.plan import Plan
from drivetrain.system import child_process, signals
from drivetrain.system.console import say, say_error
from drivetrain.system.run_files import RunFiles
from drivetrain.tuning import kernel_crash


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
        crash = kernel_crash.describe(folder, code, module)
        safe_plan = kernel_crash.turn_optimizations_off(plan, crash)
        if safe_plan:
            say(f"crash: {crash}; {kernel_crash.describe_repetition(plan, 'measured again')}")
            RunFiles(folder).write_json("plan.json", safe_plan.to_json())
            code = child_process.run_child(command, safe_plan.environment(machine), forward)
    if code not in signals.CRASH_EXIT_CODES:
        return code
    error = kernel_crash.make_final_error(crash)
    say_error(error)
    return error.exit_code
