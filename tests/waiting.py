"""Waiting in a test until something is true."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_until(condition: Callable[[], object], seconds: float = 180, every: float = 0.02) -> None:
    """Wait until something is true; only a hang takes so many seconds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "what the test waits for did not come"
        time.sleep(every)
