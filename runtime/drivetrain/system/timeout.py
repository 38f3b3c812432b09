"""A timeout for a block of code, after which another process can take over.

An interrupted compiler may leave torch in any state, so that process should not train.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator
from types import FrameType

import psutil

SWEEPS, POLITE = 30, 10
"""Number of 0.1 s rounds that look for new children; how many of them send SIGTERM (rather than SIGKILL)."""


NEXT_ALARM_SECONDS = 30.0
"""Seconds until the next alarm: Python drops an exception that is raised in a destructor."""


class TimedOut(KeyboardInterrupt):
    """Time is up. Not an Exception, so that compilers do not handle it as a failure."""


_broken: list[float] = []


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Limit a block of the main thread to `seconds`; processes that it has started are killed.

    Raises:
        TimedOut: after that time, wherever the block is.
    """

    def raise_timeout(number: int, frame: FrameType | None) -> None:
        _broken.append(seconds)
        # Kill now, while descendants can still be found: an interrupted function may end its child and orphan
        # grandchildren.
        _kill(unrelated)
        raise TimedOut(f"not done within {seconds:.0f} s")

    unrelated = set(psutil.Process().children(recursive=True))
    old_handler = signal.signal(signal.SIGALRM, raise_timeout)
    signal.setitimer(signal.ITIMER_REAL, seconds, NEXT_ALARM_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old_handler)


def _kill(unrelated: set[psutil.Process]) -> None:
    """End all children except `unrelated`, and those that threads still start in their place.

    SIGTERM comes first, so that a compiler removes incomplete files. Whoever started the children waits for them.
    """
    for sweep in range(SWEEPS):
        started = [
            child for child in psutil.Process().children(recursive=True) if child not in unrelated and _runs(child)
        ]
        if not started:
            return
        for child in started:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.terminate() if sweep < POLITE else child.kill()
        time.sleep(0.1)


def _runs(child: psutil.Process) -> bool:
    try:
        return child.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def has_timed_out() -> bool:
    """Return whether a block was interrupted in this process."""
    return bool(_broken)
