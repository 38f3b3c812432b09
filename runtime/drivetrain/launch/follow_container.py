"""Follows a container: prints its log, and explains its exit code.

The terminal of `drivetrain launch` is handed through to the container, so that the live view is painted there.
"""

from __future__ import annotations

import codecs
import contextlib
import http.client
import os
import signal
import sys
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from types import FrameType
from typing import Any

from drivetrain.errors import DrivetrainError, Stopped
from drivetrain.system import installation, signals
from drivetrain.system.console import is_live_terminal, say_aside
from drivetrain.system.printable import printable_text
from drivetrain.system.signals import KILLED_EXIT_CODE, explain_kill
from drivetrain.system.units import format_bytes

_HANDED_ON = ("TERM", "COLORTERM")
"""Variables of the terminal; not COLUMNS and LINES, which would fix its size."""
_LOG = {"driver": "json-file", "options": {"max-size": "20m", "max-file": "2"}}
"""The live view is repainted every second, some 100 MB a day in a log without limits."""


def terminal_settings(info: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that let the compose service paint on this terminal; empty where plain lines are printed.

    Args:
        info: information from the engine (`docker info`).
    """
    if not is_live_terminal():
        return {}
    variables = {name: os.environ[name] for name in _HANDED_ON if name in os.environ}
    return {"tty": True, "environment": variables} | (
        {"logging": _LOG} if info.get("LoggingDriver") == "json-file" else {}
    )


RESTART_SECONDS = 60.0
"""How long to wait for an engine that is being restarted."""
ENGINE_END_CODES = (KILLED_EXIT_CODE, 255)
"""Exit codes of a container that ended together with its engine, which could not read the code of the process."""


def read_to_end(container: Any) -> Generator[bytes, None, int]:
    """Yield the container's output as it comes; return its exit code.

    With live-restore a container survives a restart of its engine, so the output continues where it was lost.

    Raises:
        Stopped: if the engine has ended, and the container with it or perhaps so.
    """
    import docker

    count, told_at, since, is_restarted = 0, -1, 0.0, False
    while True:
        skip = 0 if is_attached(container) else count
        try:
            for chunk in _read_log(container, int(since)):
                new, skip = chunk[skip:], max(skip - len(chunk), 0)
                count, since = count + len(new), time.time()
                if new:
                    yield new
            code = int(container.wait()["StatusCode"])
            container.reload()
        except docker.errors.APIError:  # an answer
            raise
        except engine_lost():
            if told_at != count:  # an engine that is ending answers again and again, but gives no output
                say_aside(
                    f"the connection to the Docker engine was lost; waiting up to {RESTART_SECONDS:.0f} s for its restart"
                )
            told_at = count
            _wait_for_engine(container)
            is_restarted = True
            continue
        if is_restarted and code in ENGINE_END_CODES and not container.attrs["State"].get("OOMKilled"):
            raise _explain_engine_end(container, "was restarted, which ended")
        return code


def _read_log(container: Any, since: int) -> Iterator[bytes]:
    """Yield the container's log: of a terminal in the engine's pieces since that time, elsewhere in lines from the start."""
    if not is_attached(container):
        yield from container.logs(stream=True, follow=True)
        return
    # The client's own reader takes the output of a terminal byte by byte.
    api = container.client.api
    with api.get(
        f"{api.base_url}/v{api.api_version}/containers/{container.id}/logs",
        params={"stdout": 1, "stderr": 1, "follow": 1, "since": since},
        stream=True,
        timeout=None,
    ) as answer:
        answer.raise_for_status()
        yield from answer.iter_content(chunk_size=None)


def engine_lost() -> tuple[type[Exception], ...]:
    """Return the exceptions of the engine's client that mean a lost connection."""
    import urllib3

    # Errors of requests are OSErrors; so is APIError, an answer of the engine.
    return OSError, urllib3.exceptions.HTTPError, http.client.HTTPException


def _wait_for_engine(container: Any) -> None:
    """Wait until the engine answers again; raises Stopped if it does not within RESTART_SECONDS."""
    end = time.monotonic() + RESTART_SECONDS
    while True:
        time.sleep(0.2)  # an engine that is ending still answers for a moment
        with contextlib.suppress(*engine_lost()):
            container.reload()
            return
        if time.monotonic() >= end:
            raise _explain_engine_end(container, "does not answer any more, and may have ended")


def _explain_engine_end(container: Any, event: str) -> Stopped:
    return Stopped(
        f"the Docker engine {event} the container {container.name}",
        'the run continues from its last checkpoint; with "live-restore": true in /etc/docker/daemon.json, training '
        "continues during a restart of the engine",
        "once `docker info` shows the engine, run the same command again",
    )


def is_attached(container: Any) -> bool:
    """Return whether the container has a terminal."""
    return bool((container.attrs.get("Config") or {}).get("Tty"))


def follow_size(container: Any) -> None:
    """Give the container's terminal the size of this one, now and after every change."""
    import docker

    def resize(number: int = 0, frame: FrameType | None = None) -> None:
        with contextlib.suppress(
            OSError, docker.errors.APIError
        ):  # no terminal any more, or the container has just ended
            size = os.get_terminal_size(sys.stdout.fileno())
            container.resize(size.lines, size.columns)

    if is_attached(container):
        signal.signal(signal.SIGWINCH, resize)
        resize()


MIN_MEMORY_BYTES = 384 << 20
"""Bytes. With less, torch and the supervisor alone reach the limit, whatever the batch."""


def follow(container: Any, begun: Callable[[], None] = lambda: None) -> int:
    """Print the container's log until it ends; a signal stops it gracefully. Returns its exit code.

    Args:
        container: as the engine's client gives it.
        begun: called when the container prints for the first time.

    Raises:
        Stopped: if the engine has ended, and the container with it or perhaps so.
    """
    import docker

    def stop(number: int, frame: FrameType | None) -> None:
        try:
            with contextlib.suppress(docker.errors.APIError):  # it has just ended
                container.kill(signal=signal.Signals(number).name)
        except engine_lost():
            raise _explain_engine_end(container, "does not answer any more, and may have ended") from None

    signals.install_handler(stop)
    follow_size(container)
    try:
        code = _show(container, begun)
    except BrokenPipeError:
        name = container.name
        print(
            f"nobody reads this output any more; {name} goes on: `docker logs -f {name}` shows it, "
            f"`{installation.format_stop_command(name)}` stops it",
            file=sys.stderr,
        )
        raise
    reason = explain_end(code, container.attrs)
    if reason:
        print(reason, file=sys.stderr)
    return code


def _show(container: Any, begun: Callable[[], None]) -> int:
    """Print the container's log until it ends; return its code."""
    silent = True
    text = codecs.getincrementaldecoder("utf-8")(errors="replace")  # a piece may end within a character
    output = read_to_end(container)
    while True:
        try:
            chunk = next(output)
        except StopIteration as end:
            code: int = end.value
            return code
        if silent:
            begun()
            silent = False
        line = text.decode(chunk)
        # Only the live view, which needs a terminal, moves a cursor; code of the job can print anything.
        sys.stdout.write(line if is_attached(container) else printable_text(line))
        sys.stdout.flush()


def explain_end(code: int, attributes: Any) -> str:
    """Explain the exit code if the container could not report it itself; else empty.

    The engine reports OOMKilled if any process of the container was killed for memory, even if the container continued.
    """
    if code != KILLED_EXIT_CODE:
        return ""
    if not attributes["State"].get("OOMKilled"):
        return explain_kill("the container")
    limit = attributes["HostConfig"]["Memory"]
    possible = "a smaller train.batch_size or optimize.micro_batch, or a higher limits.memory"
    action = "for example --set optimize.micro_batch=8"
    if limit < MIN_MEMORY_BYTES:
        possible = f"at least {format_bytes(MIN_MEMORY_BYTES)}, of which the libraries take most"
        action = "--set limits.memory=1g, or more for a large network"
    fault = f"the container was killed because it reached its memory limit of {format_bytes(limit)}"
    return "\n".join(DrivetrainError(fault, possible, f"{action}, then run the same command again").lines())
