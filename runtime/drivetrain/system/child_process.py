"""Starts, watches and ends child processes."""

from __future__ import annotations

import contextlib
import functools
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from drivetrain.errors import Stopped
from drivetrain.system import library_variables, signals


def format_path_argument(path: Path) -> str:
    """Format a path as an argument of a command line: a leading dash gets `./`, so that the path is no option."""
    return os.path.join(os.curdir, path) if str(path).startswith("-") else str(path)


def run_child(
    command: Sequence[str],
    environment: dict[str, str],
    forward: signals.SignalForwarder,
    locks: Sequence[int] = (),
    followers: Sequence[subprocess.Popen[bytes]] = (),
    wait: Callable[[subprocess.Popen[bytes]], int] = subprocess.Popen.wait,
    output: int | None = None,
) -> int:
    """Run a child; returns its exit code as a shell does, 75 if a signal came before it started.

    Args:
        environment: the plan's variables.
        forward: gets the child, and so forwards signals to it.
        locks: open files that it inherits.
        followers: processes that work with it, and get the same signals.
        wait: waits for the child, and for the others if there are any.
        output: where its output goes; its messages then go to ours.
    """
    with signals.block_signals():
        if forward.sent:
            return Stopped.exit_code
        leader = start_child(command, build_environment(environment), locks, output=output, errors=output and 1)
        forward.children = [leader, *followers]
    code = wait(leader)
    return 128 - code if code < 0 else code


def start_child(
    command: Sequence[str],
    environment: Mapping[str, str],
    locks: Sequence[int] = (),
    *,
    output: int | None = None,
    errors: int | None = None,
    outlives_us: bool = False,
) -> subprocess.Popen[bytes]:
    """Start a child in its own process group, so that Ctrl-C reaches it once, through us.

    Args:
        environment: all of its variables.
        locks: open files that it inherits.
        output: where its output goes.
        errors: where its messages go; with its output if None.
        outlives_us: whether it goes on when we die.
    """
    # Tied to our life from the start: a child that is still starting when we are killed would hold the lock until it
    # has started.
    return subprocess.Popen(
        command,
        env=environment,
        pass_fds=locks,
        process_group=0,
        preexec_fn=None if outlives_us else functools.partial(signals.die_with_parent, os.getpid()),
        stdout=output,
        stderr=output if errors is None else errors,
    )


def wait_or_kill(child: subprocess.Popen[bytes], seconds: float | None) -> int | None:
    """Return the exit code of a child that ends within so many seconds; None if it had to be killed."""
    try:
        return child.wait(seconds)
    except subprocess.TimeoutExpired:
        return None
    finally:
        stop_child(child)


def stop_child(child: subprocess.Popen[bytes]) -> None:
    """End a child at once, and close our ends of its pipes."""
    child.kill()
    child.wait()
    for pipe in (child.stdin, child.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):  # unread input is lost
                pipe.close()


def build_environment(environment: dict[str, str]) -> dict[str, str]:
    """Build the environment of a child: ours, the plan's variables unless we have set them, and our packages' path.

    The working folder is a path of packages only if it is one of ours: a user's types.py must not replace Python's.
    """
    variables = library_variables.merge_variables(os.environ, environment)
    path = os.pathsep.join(filter(None, sys.path))
    quiet_libraries = {"HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1"}
    return {**quiet_libraries, **os.environ, **variables, "PYTHONPATH": path, "PYTHONSAFEPATH": "1"}
