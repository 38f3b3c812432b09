"""Signals: the first one ends the run at the next safe point, the second one at once."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from types import FrameType

from runtime.errors import Stopped

WATCHED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Signals:
    """Turns the first signal into `Stopped`, raised where nothing can be damaged."""

    def __init__(self) -> None:
        self.received: str | None = None
        self.depth = 0
        for number in WATCHED:
            signal.signal(number, self._handle)

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
