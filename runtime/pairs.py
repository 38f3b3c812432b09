"""Pairs: two ways of doing the same work, timed in turn, so that a noisy neighbour hits both."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

BLOCK = 0.25
"""Seconds of one block of steps; shorter ones drown in noise."""
ROUNDS = 8
EARLY = ((3, 0.6, 1.6), (5, 0.9, 1.15))
"""(pairs, below, above): a verdict is taken early when so many pairs all lie below or all above. A neighbour that takes
a core for a while makes a block half as slow again, so three pairs must show more than that."""


@dataclass(frozen=True)
class Pair:
    """Challenger against incumbent: paired speed ratios above 1 where the challenger is faster."""

    ratios: tuple[float, ...]

    @property
    def median(self) -> float:
        """The middle ratio."""
        return statistics.median(self.ratios)

    def middle(self) -> tuple[float, float]:
        """The middle half of the pairs; all of them if they are fewer than four."""
        if len(self.ratios) < 4:
            return min(self.ratios), max(self.ratios)
        low, _, high = statistics.quantiles(self.ratios, n=4)
        return low, high

    def spread(self) -> str:
        """`1.21x [1.18-1.25]`: median, and the middle half of the pairs."""
        low, high = self.middle()
        return f"{self.median:.2f}x [{low:.2f}-{high:.2f}]"


def compare(incumbent: Callable[[int], float], challenger: Callable[[int], float], step: float, seconds: float) -> Pair:
    """Blocks of steps in turn, which side begins in turn too; ends early where the verdict is clear.

    Args:
        incumbent, challenger: run a number of steps and tell the seconds.
        step: seconds of one step, to size the blocks.
        seconds: what may be spent; at least one pair is run.
    """
    count = max(1, math.ceil(BLOCK / step))
    ratios: list[float] = []
    start = time.monotonic()
    for round_ in range(ROUNDS):
        sides = (incumbent, challenger) if round_ % 2 == 0 else (challenger, incumbent)
        times = [side(count) for side in sides]
        ratios.append(times[0] / times[1] if round_ % 2 == 0 else times[1] / times[0])
        clear = (len(ratios) >= pairs and (max(ratios) < below or min(ratios) > above) for pairs, below, above in EARLY)
        if any(clear) or time.monotonic() - start > seconds:
            break
    return Pair(tuple(ratios))
