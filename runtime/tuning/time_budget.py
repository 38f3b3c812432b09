"""Budget: how long a run will take, and what measuring may take of it, from a few of its own steps."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

WORTH_FROM = 300.0
"""Seconds a run must be predicted to take before anything is measured by itself."""
SHARE = 0.02
"""Share of the predicted run that measuring may take."""
FEWEST = 16
"""Steps that a single comparison takes: six for the speed of the run, four each for the numbers, and a pair."""


class Trainable(Protocol):
    """Something that trains."""

    def steps(self, count: int) -> float:
        """Seconds of so many steps."""
        ...


@dataclass(frozen=True)
class TimeBudget:
    """Seconds, and when they began to count on the monotonic clock."""

    step: float
    """Of one step."""
    total: float
    """Of the whole run."""
    seconds: float
    """That measuring may take, prediction and all."""
    start: float

    def spent(self) -> float:
        """Seconds that are gone."""
        return time.monotonic() - self.start

    def left(self, share: float = 1.0) -> float:
        """Seconds that are left, or left of a share."""
        return share * self.seconds - self.spent()


def predicted(arm: Trainable, count: int) -> tuple[float, float]:
    """Seconds of one step, and of `count`, from a few warm ones."""
    arm.steps(2)
    step = arm.steps(3) / 3
    return step, step * count


def planned(
    begin: Callable[[], Trainable], count: int, seconds: float | None, say: Callable[[str], None]
) -> TimeBudget | None:
    """The budget of a run; None, told and with as few steps as it takes to know, if that is too short.

    Args:
        begin: gives the run's own plan in use, before its first step.
        count: optimizer steps of the whole run.
        seconds: what may be spent, whatever the length; None for a share of the run.
        say: where it is told.
    """
    start, short = time.monotonic(), "of training is too short to measure optimizations"
    if seconds is None and SHARE * count < FEWEST:
        # However long its steps are: the share would be gone before anything is compared.
        say(f"tune: skipped, {count:,} steps {short}")
        return None
    arm = begin()
    if seconds is None:
        # The first step is the slowest; a short run should not pay for four more.
        most = arm.steps(1) * count
        if most < WORTH_FROM:
            say(f"tune: skipped, at most {most:.0f} s {short}")
            return None
    step, total = predicted(arm, count)
    if seconds is None and total < WORTH_FROM:
        say(f"tune: skipped, about {total:.0f} s {short}")
        return None
    seconds = SHARE * total if seconds is None else seconds
    say(f"tune: about {total:.0f} s of training; measuring optimizations for up to {seconds:.0f} s")
    return TimeBudget(step, total, seconds, start)
