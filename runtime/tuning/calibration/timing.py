"""Times variants of the same work in turn (A B A B), and turns the times into ratios with their spread."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from runtime.tuning.paired_timing import PairedTiming, calmest

ROUNDS = 8
"""Rounds of each comparison."""
FEWEST = 3
"""Rounds that are made in any case."""
BLOCK = 0.005
"""Seconds of a block of steps: many short blocks meet a quiet moment sooner than few long ones."""
HOPELESS = 6.0
"""A variant whose first steps take so many times longer is not timed further."""


@dataclass(frozen=True)
class Ratio:
    """How many times faster a variant is than the baseline."""

    ratio: float
    low: float
    high: float
    pairs: int


@dataclass(frozen=True)
class Timings:
    """Seconds per step of each variant, one number for each round."""

    rounds: Mapping[str, tuple[float, ...]]

    def ratio(self, value: str, against: str) -> Ratio | None:
        """How many times faster `value` is; None if one of the two was not timed."""
        base, other = self.rounds.get(against, ()), self.rounds.get(value, ())
        count = min(len(base), len(other))
        if not count:
            return None
        kept = calmest(list(zip(base[:count], other[:count], strict=True)))
        low, high = PairedTiming(kept).middle()
        return Ratio(round(statistics.median(kept), 3), round(low, 3), round(high, 3), count)


def timed(variants: Mapping[str, Callable[[int], float]], until: float) -> Timings:
    """Time variants in turn, every second round in the opposite order.

    Args:
        variants: each runs a number of steps and returns the seconds; the first is the baseline.
        until: deadline on the monotonic clock, after `FEWEST` rounds.
    """
    names = list(variants)
    once = {name: _warm(variants[name]) for name in names}
    base = once[names[0]]
    slow = {name: (once[name],) for name in names if once[name] > HOPELESS * base}
    left = [name for name in names if name not in slow]
    count = max(1, math.ceil(BLOCK / max(base, 1e-6)))
    taken: dict[str, list[float]] = {name: [] for name in left}
    for number in range(ROUNDS):
        if number >= FEWEST and time.monotonic() > until:
            break
        for name in left if number % 2 == 0 else reversed(left):
            taken[name].append(variants[name](count) / count)
    return Timings({name: tuple(times) for name, times in taken.items()} | slow)


def steps(step: Callable[[], None], clock: Callable[[], float] = time.process_time) -> Callable[[int], float]:
    """A function that runs a number of steps and returns the seconds.

    Args:
        step: one step.
        clock: the process's CPU time suits one thread, as other processes hardly change it; several threads wait for
            each other, so they need a wall clock.
    """

    def run(count: int) -> float:
        start = clock()
        for _ in range(count):
            step()
        return clock() - start

    return run


def _warm(run: Callable[[int], float]) -> float:
    """Seconds of the second step; in the first one kernels are made."""
    run(1)
    return run(1)
