"""Signals: the first one ends the run at the next safe point, the second one at once.

`Signals` is the trainer's side; `stop_early` and `forwarding` are the supervisor's.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import FrameType

from runtime.errors import Stopped

WATCHED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Signals:
    """Turns the first signal into `Stopped`, raised where nothing can be damaged."""

    def __init__(self) -> None:
        self.received: str | None = None
        self.depth = 0
        _install(self._handle)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None:
            os._exit(128 + number)
        self.received = signal.Signals(number).name
        self.check()

    def check(self) -> None:
        """Raise `Stopped` if a signal has come and no section is being protected."""
        if self.received is not None and self.depth == 0:
            raise Stopped(f"stopped by {self.received}")

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """A section that a signal does not break: a step, a save. `check` comes after it."""
        self.depth += 1
        try:
            yield
        finally:
            self.depth -= 1


@dataclass
class Forward:
    """The child that signals go to, and the signals that came."""

    child: subprocess.Popen[bytes] | None = None
    sent: list[int] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Name of the first signal."""
        return signal.Signals(self.sent[0]).name

    def to(self, child: subprocess.Popen[bytes]) -> None:
        """From now on signals go to `child`, those that have come already first."""
        self.child = child
        for number in self.sent:
            child.send_signal(number)

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Pass a signal on, or keep it until there is a child."""
        self.sent.append(number)
        if self.child is not None:
            self.child.send_signal(number)


def stop_early() -> None:
    """Until there is a child, a signal ends this process with `Stopped`."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise Stopped(f"stopped by {signal.Signals(number).name}", "", "run the same command again")

    _install(stop)


@contextlib.contextmanager
def forwarding() -> Iterator[Forward]:
    """Signals go to the child that the block starts; afterwards they are ignored, for what is left takes no time."""
    forward = Forward()
    _install(forward.handle)
    try:
        yield forward
    finally:
        _install(signal.SIG_IGN)


def _install(handler: Callable[[int, FrameType | None], None] | signal.Handlers) -> None:
    for number in WATCHED:
        signal.signal(number, handler)
