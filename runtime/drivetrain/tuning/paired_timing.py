"""Times two variants of the same work in turn, so that noise from other processes hits both of them.

On a shared machine other processes take CPUs away for a while, so only the calmest pairs count.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from drivetrain.system.fault_points import fault_point

BLOCK_SECONDS = 0.12
"""Seconds of a block of steps: short enough to fit between the activities of other processes."""
MAX_ROUNDS = 20
"""Largest number of pairs in a comparison."""
CALM_ONE_IN = 3
"""One in this many pairs is selected, the calmest ones: other processes only make blocks slower."""
MIN_PAIRS = 4
"""Smallest number of selected pairs."""
EARLY = ((4, 0.6, 1.6), (6, 0.85, 1.2), (10, 0.98, 1.03))
"""(pairs, below, above): timing ends after this number of pairs if all selected ratios are below, or all are above. At the
first of these limits all pairs are selected.
"""
CLEAR_PAIRS = 14
"""Number of pairs from which on timing ends if three in four selected pairs agree."""


@dataclass(frozen=True)
class PairedTiming:
    """Paired speed ratios of a candidate and its baseline, above 1 if the candidate is faster."""

    ratios: tuple[float, ...]

    @property
    def median(self) -> float:
        """Median ratio."""
        return statistics.median(self.ratios)

    def interquartile_range(self) -> tuple[float, float]:
        """Return the interquartile range of the pairs, or the full range of fewer than four pairs."""
        if len(self.ratios) < 4:
            return min(self.ratios), max(self.ratios)
        low, _, high = statistics.quantiles(self.ratios, n=4)
        return low, high

    def format_spread(self) -> str:
        """Format median and interquartile range, such as `1.21x [1.18-1.25]`."""
        low, high = self.interquartile_range()
        return f"{self.median:.2f}x [{low:.2f}-{high:.2f}]"


def compare(
    incumbent: Callable[[int], float], challenger: Callable[[int], float], step_seconds: float, seconds: float
) -> PairedTiming:
    """Time blocks of steps in turn, with alternating order; end early if the result is clear.

    Args:
        incumbent, challenger: functions of baseline and candidate that run a number of steps and return the seconds.
        step_seconds: seconds of one step, which give the size of the blocks.
        seconds: time limit; at least one pair is run.
    """
    fault_point("compare variants")
    block_steps = max(1, math.ceil(min(BLOCK_SECONDS, seconds / (2 * MIN_PAIRS)) / step_seconds))
    pairs_of_times: list[tuple[float, float]] = []
    start_time = time.monotonic()
    for number in range(MAX_ROUNDS):
        # They take turns in running first.
        if number % 2 == 0:
            incumbent_seconds = incumbent(block_steps)
            challenger_seconds = challenger(block_steps)
        else:
            challenger_seconds = challenger(block_steps)
            incumbent_seconds = incumbent(block_steps)
        pairs_of_times.append((incumbent_seconds, challenger_seconds))
        if _is_clear(pairs_of_times) or time.monotonic() - start_time > seconds:
            break
    return PairedTiming(select_calmest(pairs_of_times))


def select_calmest(pairs_of_times: Sequence[tuple[float, float]]) -> tuple[float, ...]:
    """Select the ratios of pairs whose slower variant was closest to its own best."""
    best = [min(times) for times in zip(*pairs_of_times, strict=True)]
    order = sorted(pairs_of_times, key=lambda pair: max(pair[0] / best[0], pair[1] / best[1]))
    return tuple(pair[0] / pair[1] for pair in order[: max(MIN_PAIRS, round(len(pairs_of_times) / CALM_ONE_IN))])


def _is_clear(pairs_of_times: Sequence[tuple[float, float]]) -> bool:
    """Return whether more pairs would hardly change the result."""
    count = len(pairs_of_times)
    if count == EARLY[0][0]:
        ratios = tuple(a / b for a, b in pairs_of_times)
    else:
        ratios = select_calmest(pairs_of_times)
    for pairs, below, above in EARLY:
        if count >= pairs and (max(ratios) < below or min(ratios) > above):
            return True
    low, high = PairedTiming(ratios).interquartile_range()
    return count >= CLEAR_PAIRS and (high < 1 or low > EARLY[-1][2])
