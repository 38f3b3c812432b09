"""Child processes: those that run under a plan's environment, and short ones that measure."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from runtime.distributed import local_processes
from runtime.errors import Stopped
from runtime.hardware.facts import Hardware
from runtime.plan.plan import Plan
from runtime.system import library_variables, signals
from runtime.system.files import write_json
from runtime.tuning import kernel_crash


def child(
    command: Sequence[str],
    environment: dict[str, str],
    forward: signals.SignalForwarder,
    locks: Sequence[int] = (),
    others: Sequence[subprocess.Popen[bytes]] = (),
) -> int:
    """Run a child under a plan's environment; returns its exit code as a shell does, 75 if a signal came before it
    started.
    """
    with signals.waiting():
        if forward.sent:
            return Stopped.exit_code
        leader = started(command, environment, locks)
        forward.children = [leader, *others]
    code = local_processes.wait(leader, others)
    return 128 - code if code < 0 else code


def started(
    command: Sequence[str], environment: dict[str, str], locks: Sequence[int] = (), output: int | None = None
) -> subprocess.Popen[bytes]:
    # In its own process group, so that Ctrl-C reaches the child once, through us. Tied to our life from the start: a
    # child that is still starting when we are killed would hold the lock until it has started.
    return subprocess.Popen(
        command,
        env=surroundings(environment),
        pass_fds=locks,
        process_group=0,
        preexec_fn=functools.partial(signals.die_with, os.getpid()),
        stdout=output,
        stderr=output,
    )


def surroundings(environment: dict[str, str]) -> dict[str, str]:
    """The environment of a child: ours, the plan's variables unless we have set them, and the path of our packages."""
    given = library_variables.merge_variables(os.environ, environment)
    return {**os.environ, **given, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def measure(
    module: str,
    folder: Path,
    job: Path,
    assignments: Sequence[str],
    plan: Plan,
    machine: Hardware,
    words: Sequence[str] = (),
) -> int:
    """Run a measuring module under a plan, as a trainer would run; returns its exit code.

    Args:
        module: called with the folder, the spec and `words`.
        folder: holds hardware and plan, and gets the results.
        job: the spec.
        assignments: values that override it.
        plan: sets threads, OpenMP runtime and allocator.
        machine: the hardware.
        words: more arguments.
    """
    write_json(folder / "hardware.json", machine.to_json())
    write_json(folder / "plan.json", plan.to_json())
    command = [sys.executable, "-m", module, str(folder), str(job), *words]
    for assignment in assignments:
        command += ["--set", assignment]
    with signals.forwarding() as forward:
        code = child(command, plan.environment(machine), forward)
        if code not in signals.CRASHES or forward.sent:
            return code
        why = kernel_crash.told(folder, code, module)
        again = kernel_crash.without(plan, why)
        if again:
            print(f"crash: {why}; {kernel_crash.consequence(plan, 'measured again')}", flush=True)
            write_json(folder / "plan.json", again.to_json())
            code = child(command, again.environment(machine), forward)
    if code not in signals.CRASHES:
        return code
    error = kernel_crash.hopeless(why)
    print(error, file=sys.stderr)
    return error.exit_code
