"""Estimates the time left of a training from the times of its steps.

An evaluation at the end of an epoch takes time but no step, so the two are estimated separately: the step time from intervals
within epochs, the evaluation from the excess of an interval across the end of an epoch.
`report_progress` shows the time left of a pass over samples.
"""

from __future__ import annotations

import math
import os
import statistics
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sized
from dataclasses import dataclass
from typing import TypeVar

MIN_INTERVAL_SECONDS = 0.5
"""Smallest length of an interval in seconds; shorter ones are merged."""
HALF_LIFE_SECONDS = 90.0
"""Half-life of an interval's weight: a machine's speed changes, but a minute is more reliable than a second."""
OUTLIER_RATIO = 4.0
"""An interval slower than so many times the median counts as exactly that slow, since stalls are rarely the rule."""
MAX_INTERVALS = 2000
STUDENT_QUANTILES = (6.31, 2.92, 2.35, 2.13, 2.02, 1.94, 1.89, 1.86, 1.83)
"""95 % of Student's distribution for 2 and more intervals: the range between both signs contains 90 %."""
MIN_ERROR, MAX_ERROR = 1.25, 3.0
"""Bounds of the factor of error: even steps do not tell the time of evaluations that come later, and a wider range says
nothing.
"""
LINE_SECONDS, PAINT_SECONDS = 5.0, 0.5
"""Seconds between two lines in a log, and between updates on a terminal. A shorter pass shows nothing."""

Ids = TypeVar("Ids", bound=Sized)
Rest = TypeVar("Rest")


@dataclass(frozen=True)
class _Interval:
    """An interval: its end, seconds, steps done, and evaluations in between."""

    end: float
    seconds: float
    steps: int
    evaluations: int


class TimeLeft:
    """Call `add` after steps; `estimate` gives the estimate at any time.

    Args:
        total: optimizer steps of the whole run.
        per_epoch: steps per epoch; an evaluation follows each epoch, and the last step.
        evaluation_steps: assumed cost of an evaluation in steps, until one was timed.
    """

    def __init__(self, total: int, per_epoch: int, evaluation_steps: float = 0.0) -> None:
        self.total, self.per_epoch, self.evaluation_steps = total, max(1, per_epoch), evaluation_steps
        self.intervals: deque[_Interval] = deque(maxlen=MAX_INTERVALS)
        self.last: tuple[float, int] | None = None
        self.latest: tuple[float, int] | None = None

    def add(self, seconds: float, step: int) -> None:
        """Record that step number `step` was done at `seconds` on a monotonic clock; a repeated step starts over."""
        if self.latest is None or self.last is None or step < self.latest[1]:
            self.last = self.latest = seconds, step
            return
        if step == self.latest[1]:
            return
        ends = (self.latest[1] - 1) // self.per_epoch < (step - 1) // self.per_epoch
        if ends and self.latest != self.last:
            self._close(self.latest)
        self.latest = seconds, step
        if ends or seconds - self.last[0] >= MIN_INTERVAL_SECONDS:
            self._close(self.latest)

    def _close(self, point: tuple[float, int]) -> None:
        assert self.last is not None
        (start, start_step), (end, end_step) = self.last, point
        evaluations = (end_step - 1) // self.per_epoch - (start_step - 1) // self.per_epoch if start_step else 0
        self.intervals.append(_Interval(end, end - start, end_step - start_step, evaluations))
        self.last = point

    def step_seconds(self) -> float | None:
        """Compute the present seconds per step; None until there are a few intervals."""
        if len(self.intervals) < 3:
            return None
        every, newest = list(self.intervals), self.intervals[-1].end
        counts = [s.steps * 0.5 ** ((newest - s.end) / HALF_LIFE_SECONDS) for s in every]
        inside = sum(count for count, s in zip(counts, every, strict=True) if not s.evaluations)
        # If epochs are shorter than an interval, steps and evaluations cannot be told apart, and need not be. A few
        # intervals within epochs, from a slow phase, must not stand for all.
        excludes_evaluations = inside >= sum(counts) / 2
        weighted = [
            (s, count) for s, count in zip(every, counts, strict=True) if not (excludes_evaluations and s.evaluations)
        ]
        most = OUTLIER_RATIO * _weighted_median([(s.seconds / s.steps, float(s.steps)) for s, _ in weighted])
        seconds = sum(count * min(s.seconds / s.steps, most) for s, count in weighted)
        return float(seconds / sum(count for _, count in weighted))

    def estimate_error(self) -> float:
        """Return a factor: in nine of ten runs the time left is between the estimate divided by it and multiplied by it.

        This is Student's prediction interval of the pace of one more interval. The mean pace of many would vary less, but a
        machine that is busy now may be idle later.
        """
        even = [s for s in self.intervals if not s.evaluations]
        paces = [math.log(s.seconds / s.steps) for s in (even if len(even) > 2 else self.intervals)]
        if len(paces) < 2:
            return MAX_ERROR
        quantile = STUDENT_QUANTILES[min(len(paces), len(STUDENT_QUANTILES) + 1) - 2]
        deviation = quantile * statistics.stdev(paces) * math.sqrt(1 + 1 / len(paces))
        return min(MAX_ERROR, math.exp(math.hypot(math.log(MIN_ERROR), deviation)))

    def evaluation_seconds(self) -> float:
        """Return the median seconds of an evaluation; before the first, an estimate from `evaluation_steps`."""
        step = self.step_seconds() or 0.0
        if sum(not s.evaluations for s in self.intervals) < 3:
            return 0.0 if any(s.evaluations for s in self.intervals) else self.evaluation_steps * step
        measured = [(s.seconds - s.steps * step) / s.evaluations for s in self.intervals if s.evaluations]
        return max(0.0, statistics.median(measured)) if measured else self.evaluation_steps * step

    def estimate(self, now: float) -> float | None:
        """Return the seconds left at `now`, evaluations included; None while there is too little data."""
        step = self.step_seconds()
        if step is None or self.latest is None:
            return None
        moment, done = self.latest
        evaluations = -(-self.total // self.per_epoch) - max(0, done - 1) // self.per_epoch
        total_seconds = (self.total - done) * step + evaluations * self.evaluation_seconds()
        return max(0.0, total_seconds - max(0.0, now - moment))


def _weighted_median(weighted: list[tuple[float, float]]) -> float:
    """Return the weighted median."""
    half, weight_so_far = sum(weight for _, weight in weighted) / 2, 0.0
    for value, weight in sorted(weighted):
        weight_so_far += weight
        if weight_so_far >= half:
            return value
    return 0.0


def format_clock_time(seconds: float) -> str:
    """Format seconds as `0:42`, `12:05` or `1:02:03`."""
    whole_seconds = int(seconds)
    hours, minutes = divmod(whole_seconds // 60, 60)
    return f"{hours}:{minutes:02}:{whole_seconds % 60:02}" if hours else f"{minutes}:{whole_seconds % 60:02}"


def report_progress(batches: Iterable[tuple[Ids, Rest]], total: int, doing: str) -> Iterator[tuple[Ids, Rest]]:
    """Yield the batches, and show progress.

    Args:
        batches: pairs of sample ids and any data.
        total: number of samples in all batches.
        doing: name of the pass, for example `evaluate`.
    """
    tty = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    start = last_print = time.monotonic()
    done, every, width = 0, PAINT_SECONDS if tty else LINE_SECONDS, 0
    try:
        for batch in batches:
            yield batch
            done += len(batch[0])
            now = time.monotonic()
            if now - last_print < every or done >= total:
                continue
            last_print = now
            text = f"{doing}: {done:,} of {total:,} samples  {format_clock_time((total - done) * (now - start) / done)} left"
            width = max(width, len(text))
            print(f"\r{text:<{width}}" if tty else text, end="" if tty else "\n", file=sys.stderr, flush=True)
    finally:
        if tty and width:
            print(f"\r{'':<{width}}\r", end="", file=sys.stderr, flush=True)
