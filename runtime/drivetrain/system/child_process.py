"""Starts, watches and ends child processes, and talks to those that answer requests."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

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
    requests: int | None = None,
    output: int | None = None,
    errors: int | None = None,
    outlives_us: bool = False,
) -> subprocess.Popen[bytes]:
    """Start a child in its own process group, so that Ctrl-C reaches it once, through us.

    Args:
        environment: all of its variables.
        locks: open files that it inherits.
        requests: its standard input; ours if None.
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
        stdin=requests,
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
            with contextlib.suppress(OSError):  # what it has not read is lost
                pipe.close()


class ChildEnded(Exception):
    """A child could not start, or has ended; the text is its last message."""


class Worker:
    """A child that answers requests, each a line of JSON, until it is closed.

    Args:
        command: its command line; the program uses `open_answers` and `read_requests`.
        environment: all of its variables.
        log: the file that gets its messages.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        self.log = log
        with log.open("wb") as file:
            self.process = start_child(
                command, environment, requests=subprocess.PIPE, output=subprocess.PIPE, errors=file.fileno()
            )

    def ask(self, request: object) -> Any:
        """Send a request; returns the answer; raises ChildEnded if the child has ended."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(f"{json.dumps(request)}\n".encode())
            self.process.stdin.flush()
        except OSError:
            raise ChildEnded(self._describe_end()) from None
        return self.read_answer()

    def read_answer(self) -> Any:
        """Read the next answer; raises ChildEnded if the child ends before."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line.endswith(b"\n"):  # killed before or in an answer
            self.process.wait()
            raise ChildEnded(self._describe_end())
        return json.loads(line)

    def close(self) -> None:
        """End the child."""
        stop_child(self.process)

    def _describe_end(self) -> str:
        if (signal := signals.CRASH_EXIT_CODES.get(128 - (self.process.poll() or 0))) is not None:
            return f"crashed with {signal} inside a kernel"
        lines = self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return lines[-1].strip()[:200] if lines else f"exited with code {self.process.poll()}"


def open_answers() -> Callable[[object], None]:
    """For a worker's program: the function that sends an answer. What else is printed goes to the log."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return lambda answer: print(json.dumps(answer), file=answers, flush=True)


def read_requests() -> Iterator[Any]:
    """For a worker's program: the requests, until the worker is closed."""
    return map(json.loads, sys.stdin)


def build_environment(environment: dict[str, str]) -> dict[str, str]:
    """The environment of a child: ours, the plan's variables unless we have set them, and the path of our packages.

    The working folder is a path of packages only if it is one of ours: a user's types.py must not replace Python's.
    """
    variables = library_variables.merge_variables(os.environ, environment)
    path = os.pathsep.join(filter(None, sys.path))
    quiet_libraries = {"HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1"}
    return {**quiet_libraries, **os.environ, **variables, "PYTHONPATH": path, "PYTHONSAFEPATH": "1"}
