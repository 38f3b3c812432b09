"""Follows a container: prints its log, translates the path of its run, and explains its exit code."""

from __future__ import annotations

import codecs
import contextlib
import os
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from runtime.launch import container_terminal
from runtime.launch.project import PROJECT
from runtime.system import installation
from runtime.system.exit_codes import KILLED, explain_kill
from runtime.system.units import format_bytes

_RUN = re.compile(rb"^run (runs/\S+) (?:starts|resumes|goes on|continues \S+)\r?$", re.MULTILINE)
"""The last form is that of an older image; a terminal ends its lines with a carriage return."""

SMALLEST = 384 << 20
"""Bytes. With less, torch and the supervisor alone reach the limit, whatever the batch."""


def follow(
    container: Any, begun: Callable[[], None] = lambda: None, opened: Callable[[Path], None] = lambda run: None
) -> int:
    """Print the container's log until it ends; a signal stops it gracefully. Returns its exit code.

    Args:
        container: as the engine's client gives it.
        begun: called when the container prints for the first time.
        opened: called with the folder of each run that the container starts.
    """

    import docker

    def stop(number: int, frame: FrameType | None) -> None:
        with contextlib.suppress(docker.errors.APIError):  # it has just ended
            container.kill(signal=signal.Signals(number).name)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, stop)
    container_terminal.follow_size(container)
    try:
        _show(container, begun, opened)
    except BrokenPipeError:
        name = container.name
        print(
            f"nobody reads this output any more; {name} goes on: `docker logs -f {name}` shows it, "
            f"`{installation.stop(name)}` stops it",
            file=sys.stderr,
        )
        raise
    code = int(container.wait()["StatusCode"])
    container.reload()
    if why := ended(code, container.attrs):
        print(why, file=sys.stderr)
    return code


def _show(container: Any, begun: Callable[[], None], opened: Callable[[Path], None]) -> None:
    """Print the container's log until it ends, and once the path of its run as seen from this folder."""
    told, line, silent = Path.cwd() == PROJECT, b"", True
    text = codecs.getincrementaldecoder("utf-8")(errors="replace")  # a piece may end within a character
    for chunk in container_terminal.output(container):
        if silent:
            begun()
            silent = False
        sys.stdout.write(text.decode(chunk))
        line += chunk
        if line.endswith(b"\n"):
            for run in _RUN.findall(line):
                if not told:
                    sys.stdout.write(f"from this folder: drivetrain watch {_from_here(run.decode())}\n")
                told = True
                opened(PROJECT / run.decode())
            line = b""
        sys.stdout.flush()


def _from_here(run: str) -> str:
    """A path in the container, relative to the project, as seen from the working folder."""
    path = PROJECT / run
    return os.path.relpath(path) if Path.cwd() in PROJECT.parents or PROJECT in Path.cwd().parents else str(path)


def ended(code: int, attributes: Any) -> str:
    """What the exit code means if the container could not report it itself; else empty.

    The engine reports OOMKilled if any process of the container was killed for memory, even if the container continued.
    """
    if code != KILLED:
        return ""
    if attributes["State"].get("OOMKilled"):
        limit = format_bytes(attributes["HostConfig"]["Memory"])
        if attributes["HostConfig"]["Memory"] < SMALLEST:
            return (
                f"the container was killed because it reached its memory limit of {limit}\n"
                f"  possible: at least {format_bytes(SMALLEST)}, of which the libraries take most\n"
                "  do:       --set limits.memory=1g, or more for a large network, then run the same command again"
            )
        return (
            f"the container was killed because it reached its memory limit of {limit}\n"
            "  possible: a smaller train.batch_size or optimize.micro_batch, or a higher limits.memory\n"
            "  do:       for example --set optimize.micro_batch=8, then run the same command again"
        )
    return explain_kill("the container")
