"""Paired timing: variants of the same work, timed in turn, so that noise from other processes hits all of them.

On a shared machine others take CPUs away for a while. The kernel counts how long our threads were ready without a CPU;
`bench` repeats pairs in which they waited, and counts those with the least waiting. Pairs are selected by the waiting
time only, never by their ratio.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from drivetrain.system.fault_points import fault_point

Block = TypeVar("Block")
"""The result of a block of steps: its seconds, or more."""
BLOCK_SECONDS = 0.12
"""Seconds of a block of steps: short enough to fit between the activities of others."""
MAX_ROUNDS = 20
CALM_ONE_IN = 3
"""One in so many pairs counts, those with the least noise: other processes make blocks slower, never faster."""
MIN_PAIRS = 4
"""Smallest number of pairs that count."""
EARLY = ((4, 0.6, 1.6), (6, 0.85, 1.2), (10, 0.98, 1.03))
"""(pairs, below, above): timing ends early after so many pairs if all that count are below or all above. At the first
of these limits all pairs count.
"""
CLEAR_PAIRS = 14
"""Pairs after which it is enough that three in four of those that count agree."""


@dataclass(frozen=True)
class PairedTiming:
    """Candidate against baseline: paired speed ratios, above 1 where the candidate is faster."""

    ratios: tuple[float, ...]

    @property
    def median(self) -> float:
        """The median ratio."""
        return statistics.median(self.ratios)

    def interquartile_range(self) -> tuple[float, float]:
        """The interquartile range of the pairs; their full range if they are fewer than four."""
        if len(self.ratios) < 4:
            return min(self.ratios), max(self.ratios)
        low, _, high = statistics.quantiles(self.ratios, n=4)
        return low, high

    def format_spread(self) -> str:
        """Median and interquartile range, such as `1.21x [1.18-1.25]`."""
        low, high = self.interquartile_range()
        return f"{self.median:.2f}x [{low:.2f}-{high:.2f}]"


def count_block_steps(step_seconds: float) -> int:
    """Steps per block, if a step takes `step_seconds` seconds."""
    return max(1, math.ceil(BLOCK_SECONDS / step_seconds))


def alternate(
    first: Callable[[int], Block], second: Callable[[int], Block], block_steps: int, pairs: int
) -> Iterator[tuple[Block, Block]]:
    """Blocks of `block_steps` steps of both variants, which take turns in going first."""
    for number in range(pairs):
        if number % 2 == 0:
            first_result = first(block_steps)
            yield first_result, second(block_steps)
        else:
            second_result = second(block_steps)
            yield first(block_steps), second_result


def compare(
    incumbent: Callable[[int], float], challenger: Callable[[int], float], step_seconds: float, seconds: float
) -> PairedTiming:
    """Time blocks of steps in turn, with alternating order; ends early if the result is clear.

    Args:
        incumbent, challenger: baseline and candidate; each runs a number of steps and returns the seconds.
        step_seconds: seconds of one step, to size the blocks.
        seconds: time limit; at least one pair is run.

    Returns:
        The pairs with the least noise: selected by how slow each variant was relative to its own best, never by the
        ratio.
    """
    fault_point("compare variants")
    block_steps = count_block_steps(step_seconds)
    pairs_of_times: list[tuple[float, float]] = []
    start_time = time.monotonic()
    for pair in alternate(incumbent, challenger, block_steps, MAX_ROUNDS):
        pairs_of_times.append(pair)
        if _is_clear(pairs_of_times) or time.monotonic() - start_time > seconds:
            break
    return PairedTiming(select_calmest(pairs_of_times))


def select_calmest(pairs_of_times: Sequence[tuple[float, float]]) -> tuple[float, ...]:
    """The ratios of the pairs in which the slower variant was closest to its own best."""
    best = [min(times) for times in zip(*pairs_of_times, strict=True)]
    order = sorted(pairs_of_times, key=lambda pair: max(pair[0] / best[0], pair[1] / best[1]))
    return tuple(pair[0] / pair[1] for pair in order[: max(MIN_PAIRS, round(len(pairs_of_times) / CALM_ONE_IN))])


def _is_clear(pairs_of_times: Sequence[tuple[float, float]]) -> bool:
    """Whether more pairs would hardly change the result."""
    ratios = (
        tuple(a / b for a, b in pairs_of_times)
        if len(pairs_of_times) == EARLY[0][0]
        else select_calmest(pairs_of_times)
    )
    for pairs, below, above in EARLY:
        if len(pairs_of_times) >= pairs and (max(ratios) < below or min(ratios) > above):
            return True
    low, high = PairedTiming(ratios).interquartile_range()
    return len(pairs_of_times) >= CLEAR_PAIRS and (high < 1 or low > EARLY[-1][2])


MAX_WAITED_SHARE = 0.03
"""A block is low-noise if its threads waited for a CPU for at most this share of its time."""
MAX_REPETITIONS = 5
"""Limits the repetitions: to so many times the requested pairs, and to so many times their time."""
MIN_QUIET_PAIRS = 3
"""Pairs that are taken however long they take."""


@dataclass(frozen=True)
class TimedBlock:
    """Some steps of one variant."""

    steps: int
    seconds: float
    waited: float
    """Time that all its threads together waited for a CPU, relative to its seconds."""


Steps = Callable[[int], TimedBlock]
BlockPair = tuple[TimedBlock, TimedBlock]


def time_quiet_pairs(slow: Steps, fast: Steps, block_steps: int, pairs: int) -> list[BlockPair]:
    """The `pairs` pairs of blocks of `block_steps` steps with the least noise; the variants take turns in going first."""
    timed_pairs: list[BlockPair] = []
    deadline = time.monotonic() + MAX_REPETITIONS * pairs * 2 * BLOCK_SECONDS
    for block_pair in alternate(slow, fast, block_steps, MAX_REPETITIONS * pairs):
        timed_pairs.append(block_pair)
        enough = sum(_waited_seconds(pair) <= MAX_WAITED_SHARE for pair in timed_pairs) >= pairs
        if enough or (len(timed_pairs) >= MIN_QUIET_PAIRS and time.monotonic() > deadline):
            break
    return sorted(timed_pairs, key=_waited_seconds)[:pairs]


def _waited_seconds(pair: BlockPair) -> float:
    return max(block.waited for block in pair)


ROUNDS = 8
"""Rounds of each comparison."""
MIN_ROUNDS = 3
"""Rounds that are made in any case."""
PROBE_BLOCK_SECONDS = 0.005
"""Seconds of a block of steps: many short blocks meet a quiet moment sooner than few long ones."""
MAX_SLOWDOWN = 6.0
"""A variant whose second step takes so many times that of the baseline is not timed further."""


@dataclass(frozen=True)
class Timings:
    """Seconds per step of each variant, one number for each round."""

    rounds: Mapping[str, tuple[float, ...]]

    def ratio(self, value: str, against: str) -> dict[str, Any] | None:
        """How many times faster `value` is, as the numbers of a probe; None if one of the two was not timed."""
        base, other = self.rounds.get(against, ()), self.rounds.get(value, ())
        count = min(len(base), len(other))
        if not count:
            return None
        calm_ratios = select_calmest(list(zip(base[:count], other[:count], strict=True)))
        low, high = PairedTiming(calm_ratios).interquartile_range()
        ratios = {"ratio": statistics.median(calm_ratios), "low": low, "high": high}
        return {name: round(ratio, 3) for name, ratio in ratios.items()} | {"pairs": count}


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
    count = max(1, math.ceil(PROBE_BLOCK_SECONDS / max(baseline, 1e-6)))
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
