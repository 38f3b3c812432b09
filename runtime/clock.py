"""Clock: where the time of a run goes, by phase."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

Item = TypeVar("Item")


class Clock:
    """Seconds by phase; monotonic, so that a changed wall clock changes nothing."""

    def __init__(self) -> None:
        self.phases: dict[str, float] = {}
        self.start = time.monotonic()

    @property
    def seconds(self) -> float:
        """Seconds since this clock was made."""
        return time.monotonic() - self.start

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the time of a `with` block."""
        start = time.monotonic()
        try:
            yield
        finally:
            self.phases[name] = self.phases.get(name, 0.0) + time.monotonic() - start

    def waiting(self, name: str, items: Iterable[Item]) -> Iterator[Item]:
        """Pass items through, counting the time that each took to come."""
        source = iter(items)
        while True:
            with self.phase(name):
                item = next(source, None)
            if item is None:
                return
            yield item
