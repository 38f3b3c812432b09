"""Times variants of the same work in turn (A B A B), and turns the times into ratios with their spread."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from drivetrain.tuning.paired_timing import PairedTiming, select_calmest

ROUNDS = 8
"""Rounds of each comparison."""
MIN_ROUNDS = 3
"""Rounds that are made in any case."""
BLOCK_SECONDS = 0.005
"""Seconds of a block of steps: many short blocks meet a quiet moment sooner than few long ones."""
MAX_SLOWDOWN = 6.0
"""A variant whose second step takes so many times that of the baseline is not timed further."""


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
        calm_ratios = select_calmest(list(zip(base[:count], other[:count], strict=True)))
        low, high = PairedTiming(calm_ratios).interquartile_range()
        return Ratio(round(statistics.median(calm_ratios), 3), round(low, 3), round(high, 3), count)


def time_variants(variants: Mapping[str, Callable[[int], float]], until: float) -> Timings:
    """Time variants in turn, every second round in the opposite order.

    Args:
        variants: each runs a number of steps and returns the seconds; the first is the baseline.
        until: deadline on the monotonic clock, after `MIN_ROUNDS` rounds.
    """
    second_step = {name: _time_second_step(run) for name, run in variants.items()}
    baseline = next(iter(second_step.values()))
    # One number is enough of a variant that is out of the question.
    too_slow = {name: (seconds,) for name, seconds in second_step.items() if seconds > MAX_SLOWDOWN * baseline}
    candidates = [name for name in variants if name not in too_slow]
    count = max(1, math.ceil(BLOCK_SECONDS / max(baseline, 1e-6)))
    seconds_of: dict[str, list[float]] = {name: [] for name in candidates}
    for number in range(ROUNDS):
        if number >= MIN_ROUNDS and time.monotonic() > until:
            break
        # What grows slower with time, such as a warm machine, then falls on all of them alike.
        for name in candidates if number % 2 == 0 else reversed(candidates):
            seconds_of[name].append(variants[name](count) / count)
    return Timings({name: tuple(seconds) for name, seconds in seconds_of.items()} | too_slow)


def make_timer(step: Callable[[], None], clock: Callable[[], float] = time.process_time) -> Callable[[int], float]:
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


def _time_second_step(run: Callable[[int], float]) -> float:
    """Seconds of the second step; in the first one kernels are made."""
    run(1)
    return run(1)
