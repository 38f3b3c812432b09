"""Deadline: breaks off what takes too long, where another process can take over afterwards.

A compiler that is broken off may leave torch in any state, so a process in which that has happened should not train.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator
from types import FrameType

import psutil

SWEEPS, POLITE = 30, 10
"""How often what threads go on to start is looked for, a tenth of a second apart; and how often it is asked to end."""


AGAIN = 30.0
"""Seconds to the next alarm: Python drops an exception that is raised while it takes something apart."""


class TimedOut(KeyboardInterrupt):
    """Time is up. No Exception: compilers must not take it for a failure of theirs."""


_broken: list[float] = []


@contextlib.contextmanager
def within(seconds: float) -> Iterator[None]:
    """A block of the main thread that may take so long; what it has started by then is killed.

    Raises:
        Late: after that time, wherever the block is.
    """

    def late(number: int, frame: FrameType | None) -> None:
        _broken.append(seconds)
        # Now, while they can be told by their parents: who is broken off may end its own child and leave that one's.
        _kill(others)
        raise TimedOut(f"not done within {seconds:.0f} s")

    others = set(psutil.Process().children(recursive=True))
    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _kill(others: set[psutil.Process]) -> None:
    """End all children but these, and those that threads still start in their place.

    Politely first: a compiler then removes what it has half written. They are left to be waited for by who started them.
    """
    for sweep in range(SWEEPS):
        left = [child for child in psutil.Process().children(recursive=True) if child not in others and _runs(child)]
        if not left:
            return
        for child in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.terminate() if sweep < POLITE else child.kill()
        time.sleep(0.1)


def _runs(child: psutil.Process) -> bool:
    try:
        return child.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def broken_off() -> bool:
    """Whether anything was broken off in this process."""
    return bool(_broken)
