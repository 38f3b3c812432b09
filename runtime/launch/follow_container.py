"""Follows a container: prints its log, translates the path of its run, and explains its exit code."""

from __future__ import annotations

import codecs
import contextlib
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from runtime.launch import container_terminal
from runtime.launch.project import PROJECT
from runtime.supervisor.started_runs import StartedRuns
from runtime.system import installation, signals
from runtime.system.exit_codes import KILLED, explain_kill
from runtime.system.printable import printable_text
from runtime.system.units import format_bytes

SMALLEST = 384 << 20
"""Bytes. With less, torch and the supervisor alone reach the limit, whatever the batch."""


def follow(
    container: Any,
    runs: StartedRuns,
    begun: Callable[[], None] = lambda: None,
    opened: Callable[[Path], None] = lambda run: None,
) -> int:
    """Print the container's log until it ends; a signal stops it gracefully. Returns its exit code.

    Args:
        container: as the engine's client gives it.
        runs: where the container announces the runs that it starts.
        begun: called when the container prints for the first time.
        opened: called with the folder of each run that the container starts.
    """

    import docker

    def stop(number: int, frame: FrameType | None) -> None:
        with contextlib.suppress(docker.errors.APIError):  # it has just ended
            container.kill(signal=signal.Signals(number).name)

    signals.install(stop)
    container_terminal.follow_size(container)
    try:
        _show(container, runs, begun, opened)
    except BrokenPipeError:
        name = container.name
        print(
            f"nobody reads this output any more; {name} goes on: `docker logs -f {name}` shows it, "
            f"`{installation.stop(name)}` stops it",
            file=sys.stderr,
        )
        raise
    finally:
        runs.remove()
    code = int(container.wait()["StatusCode"])
    container.reload()
    if why := ended(code, container.attrs):
        print(why, file=sys.stderr)
    return code


def _show(container: Any, runs: StartedRuns, begun: Callable[[], None], opened: Callable[[Path], None]) -> None:
    """Print the container's log until it ends, and once the path of its run as seen from this folder."""
    path_is_known, silent = Path.cwd() == PROJECT, True
    text = codecs.getincrementaldecoder("utf-8")(errors="replace")  # a piece may end within a character
    for chunk in container_terminal.output(container):
        if silent:
            begun()
            silent = False
        line = text.decode(chunk)
        # Only the live view, which needs a terminal, moves a cursor; code of the job can print anything.
        sys.stdout.write(line if container_terminal.attached(container) else printable_text(line))
        if chunk.endswith(b"\n"):
            for run in runs.read_new():
                if not path_is_known:
                    sys.stdout.write(f"from this folder: drivetrain watch {_relative_path(run)}\n")
                path_is_known = True
                opened(run)
        sys.stdout.flush()


def _relative_path(run: Path) -> str:
    """A path in the project as seen from the working folder, if one of the two lies in the other."""
    return os.path.relpath(run) if Path.cwd() in PROJECT.parents or PROJECT in Path.cwd().parents else str(run)


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
