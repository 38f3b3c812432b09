"""Tells what a process is doing if that takes longer than usual: on a busy machine an import can take a minute."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from runtime.system.console import say

PATIENCE = 5.0
"""Seconds without a line."""


@contextlib.contextmanager
def told_if_slow(what: str, seconds: float | None = None) -> Iterator[None]:
    """Print one line if the block takes longer than `seconds`; PATIENCE if None."""
    timer = threading.Timer(PATIENCE if seconds is None else seconds, say, (f"{what} ...",))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
