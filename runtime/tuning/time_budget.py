"""Predicts how long a run will take from a few of its steps, and how much time measuring may use."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

WORTH_FROM = 300.0
"""Seconds; shorter runs are not measured by default."""
SHARE = 0.02
"""Share of the predicted run that measuring may use."""
FEWEST = 16
"""Steps that a single comparison needs: six for the speed of the run, four each for the losses, and a pair."""


class Trainable(Protocol):
    """A network that can train steps."""

    def steps(self, count: int) -> float:
        """Seconds of `count` steps."""
        ...


@dataclass(frozen=True)
class TimeBudget:
    """A time limit in seconds, and its start on the monotonic clock."""

    step: float
    """Of one step."""
    total: float
    """Of the whole run."""
    seconds: float
    """For measuring, including the prediction."""
    start: float

    def spent(self) -> float:
        """Seconds that have passed."""
        return time.monotonic() - self.start

    def left(self, share: float = 1.0) -> float:
        """Seconds that are left, of the whole limit or of a share of it."""
        return share * self.seconds - self.spent()


def predicted(arm: Trainable, count: int) -> tuple[float, float]:
    """Seconds of one step and of `count` steps, from a few warm ones."""
    arm.steps(2)
    step = arm.steps(3) / 3
    return step, step * count


def planned(
    begin: Callable[[], Trainable], count: int, seconds: float | None, say: Callable[[str], None]
) -> TimeBudget | None:
    """The time limit of a run; None, reported after as few steps as possible, if the run is too short.

    Args:
        begin: starts the run's own plan, before its first step.
        count: optimizer steps of the whole run.
        seconds: time limit, whatever the length; None for a share of the run.
        say: reports the decision.
    """
    start, short = time.monotonic(), "of training is too short to measure optimizations"
    if seconds is None and SHARE * count < FEWEST:
        # However long its steps are, the share would be used up before anything is compared.
        say(f"tune: skipped, {count:,} training steps are too few to measure optimizations")
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
