"""Runs a measuring program in a child process, under a plan as a trainer would run."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from runtime.hardware.facts import Hardware
from runtime.job_spec.spec_source import SpecSource
from runtime.plan.plan import Plan
from runtime.system import child_process, signals
from runtime.system.console import say, say_error
from runtime.system.run_files import RunFiles
from runtime.tuning import kernel_crash


def measure(
    module: str,
    folder: Path,
    source: SpecSource,
    plan: Plan,
    machine: Hardware,
    words: Sequence[str] = (),
) -> int:
    """Run a measuring module; returns its exit code.

    Args:
        module: called with the folder, the spec and `words`.
        folder: holds hardware and plan, and gets the results.
        source: the spec.
        plan: sets threads, OpenMP runtime and allocator.
        machine: the hardware.
        words: more arguments.
    """
    RunFiles(folder).write_json("hardware.json", machine.to_json())
    RunFiles(folder).write_json("plan.json", plan.to_json())
    paths = map(child_process.path_word, (folder, source.spec))
    command = [sys.executable, "-m", module, *paths, *words, *source.options()]
    with signals.forwarding() as forward:
        code = child_process.child(command, plan.environment(machine), forward)
        if code not in signals.CRASHES or forward.sent:
            return code
        why = kernel_crash.told(folder, code, module)
        again = kernel_crash.without(plan, why)
        if again:
            say(f"crash: {why}; {kernel_crash.consequence(plan, 'measured again')}")
            RunFiles(folder).write_json("plan.json", again.to_json())
            code = child_process.child(command, again.environment(machine), forward)
    if code not in signals.CRASHES:
        return code
    error = kernel_crash.hopeless(why)
    say_error(error)
    return error.exit_code
