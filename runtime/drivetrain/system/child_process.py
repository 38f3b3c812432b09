"""Starts child processes under a plan's environment, and waits for them."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from drivetrain.errors import Stopped
from drivetrain.system import library_variables, signals


def format_path_argument(path: Path) -> str:
    """A path as an argument of a command line: one that begins with a dash gets `./`, so that it is no option."""
    return os.path.join(os.curdir, path) if str(path).startswith("-") else str(path)


def run_child(
    command: Sequence[str],
    environment: dict[str, str],
    forward: signals.SignalForwarder,
    locks: Sequence[int] = (),
    followers: Sequence[subprocess.Popen[bytes]] = (),
    wait: Callable[[subprocess.Popen[bytes]], int] = subprocess.Popen.wait,
) -> int:
    """Run a child; returns its exit code as a shell does, 75 if a signal came before it started.

    Args:
        command: its command line.
        environment: the plan's variables.
        forward: gets the child, and so forwards signals to it.
        locks: open files that it inherits.
        followers: processes that work with it, and get the same signals.
        wait: waits for the child, and for the others if there are any.
    """
    with signals.block_signals():
        if forward.sent:
            return Stopped.exit_code
        leader = start_child(command, environment, locks)
        forward.children = [leader, *followers]
    code = wait(leader)
    return 128 - code if code < 0 else code


def start_child(
    command: Sequence[str], environment: dict[str, str], locks: Sequence[int] = (), output: int | None = None
) -> subprocess.Popen[bytes]:
    # In its own process group, so that Ctrl-C reaches the child once, through us. Tied to our life from the start: a
    # child that is still starting when we are killed would hold the lock until it has started.
    return subprocess.Popen(
        command,
        env=build_environment(environment),
        pass_fds=locks,
        process_group=0,
        preexec_fn=functools.partial(signals.die_with_parent, os.getpid()),
        stdout=output,
        stderr=output,
    )


def build_environment(environment: dict[str, str]) -> dict[str, str]:
    """The environment of a child: ours, the plan's variables unless we have set them, and the path of our packages.

    The working folder is a path of packages only if it is one of ours: a user's types.py must not replace Python's.
    """
    variables = library_variables.merge_variables(os.environ, environment)
    path = os.pathsep.join(filter(None, sys.path))
    return {**os.environ, **variables, "PYTHONPATH": path, "PYTHONSAFEPATH": "1"}
