"""Hands the terminal of `drivetrain launch` through to the container, so that the live view is painted there."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import Any

from runtime.system.console import live_terminal

_HANDED_ON = ("TERM", "COLORTERM")
"""Variables of the terminal; not COLUMNS and LINES, which would fix its size."""
_LOG = {"driver": "json-file", "options": {"max-size": "20m", "max-file": "2"}}
"""The live view is repainted every second, some 100 MB a day in a log without limits."""


def service(info: Mapping[str, Any]) -> dict[str, Any]:
    """What the compose service needs to paint on this terminal; empty where plain lines are printed.

    Args:
        info: information from the engine (`docker info`).
    """
    if not live_terminal():
        return {}
    found = {name: os.environ[name] for name in _HANDED_ON if name in os.environ}
    return {"tty": True, "environment": found} | ({"logging": _LOG} if info.get("LoggingDriver") == "json-file" else {})


def output(container: Any) -> Iterator[bytes]:
    """The container's output as it comes: of a terminal in the engine's pieces, elsewhere in lines."""
    if not attached(container):
        yield from container.logs(stream=True, follow=True)
        return
    # The client's own reader takes the output of a terminal byte by byte.
    api = container.client.api
    with api.get(
        f"{api.base_url}/v{api.api_version}/containers/{container.id}/logs",
        params={"stdout": 1, "stderr": 1, "follow": 1},
        stream=True,
        timeout=None,
    ) as answer:
        answer.raise_for_status()
        yield from answer.iter_content(chunk_size=None)


def attached(container: Any) -> bool:
    """Whether the container has a terminal."""
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

    if attached(container):
        signal.signal(signal.SIGWINCH, resize)
        resize()
