"""Measures the seconds of a run by phase, and the age of this process."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

Item = TypeVar("Item")


class PhaseTimer:
    """Seconds by phase, on a monotonic clock.

    Phases can nest: while an inner phase runs, the outer phase is paused, so all phases add up to the total.
    """

    def __init__(self) -> None:
        self.phases: dict[str, float] = {}
        self.started = self.last_switch = time.monotonic()
        self.open_phases: list[str] = []

    @property
    def seconds(self) -> float:
        """Seconds since the timer was created."""
        return time.monotonic() - self.started

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the time of the `with` block as phase `name`."""
        self._count_open_phase()
        self.open_phases.append(name)
        try:
            yield
        finally:
            self._count_open_phase()
            self.open_phases.pop()

    def _count_open_phase(self) -> None:
        now = time.monotonic()
        if self.open_phases:
            self.phases[self.open_phases[-1]] = self.phases.get(self.open_phases[-1], 0.0) + now - self.last_switch
        self.last_switch = now

    def time_waiting(self, name: str, items: Iterable[Item]) -> Generator[Item]:
        """Yield the items, and count the time of waiting for them as phase `name`; close a generator at the end."""
        source = iter(items)
        try:
            while True:
                with self.phase(name):
                    item = next(source, None)
                if item is None:
                    return
                yield item
        finally:
            if isinstance(source, Generator):
                source.close()


def process_seconds() -> float:
    """Return the seconds since this process started, on a clock that cannot be set (except on macOS)."""
    if not hasattr(time, "CLOCK_BOOTTIME"):
        import psutil

        return max(0.0, time.time() - psutil.Process().create_time())
    ticks = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19]
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - int(ticks) / os.sysconf("SC_CLK_TCK"))
