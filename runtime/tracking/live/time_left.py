"""Time left: an honest guess of how long a training still takes, from when its steps were done.

An evaluation at the end of each epoch costs time but no step, so the two are told apart: what steps cost comes from
the stretches within epochs, and what remains of a stretch over the end of an epoch is an evaluation.
"""

from __future__ import annotations

import statistics
from collections import deque
from dataclasses import dataclass

LEAST = 0.5
"""Seconds that a stretch should last: shorter ones are put together."""
HALF_LIFE = 90.0
"""Seconds after which a stretch counts half: a machine's speed changes, but a minute says more than a second."""
OUTLIER = 4.0
"""A stretch slower than so many times the median counts as if it were just so slow: stalls are seldom the rule."""
KEPT = 2000


@dataclass(frozen=True)
class _Stretch:
    """From one moment to the next: its end, seconds, steps done, and evaluations in between."""

    end: float
    seconds: float
    steps: int
    evaluations: int


class TimeLeft:
    """Fed with `add` after steps; `left` answers at any time.

    Args:
        total: optimizer steps of the whole run.
        per_epoch: steps of an epoch; an evaluation follows each, and the last step.
        evaluation_steps: how many steps an evaluation costs, until one was seen.
    """

    def __init__(self, total: int, per_epoch: int, evaluation_steps: float = 0.0) -> None:
        self.total, self.per_epoch, self.evaluation_steps = total, max(1, per_epoch), evaluation_steps
        self.stretches: deque[_Stretch] = deque(maxlen=KEPT)
        self.last: tuple[float, int] | None = None
        self.latest: tuple[float, int] | None = None

    def add(self, seconds: float, step: int) -> None:
        """Step number `step` was done at `seconds` on any steady clock; a step that is done again starts anew."""
        if self.latest is None or self.last is None or step < self.latest[1]:
            self.last = self.latest = seconds, step
            return
        if step == self.latest[1]:
            return
        ends = (self.latest[1] - 1) // self.per_epoch < (step - 1) // self.per_epoch
        if ends and self.latest != self.last:
            self._close(self.latest)
        self.latest = seconds, step
        if ends or seconds - self.last[0] >= LEAST:
            self._close(self.latest)

    def _close(self, point: tuple[float, int]) -> None:
        assert self.last is not None
        (before, first), (now, step) = self.last, point
        crossed = (step - 1) // self.per_epoch - (first - 1) // self.per_epoch if first else 0
        self.stretches.append(_Stretch(now, now - before, step - first, crossed))
        self.last = point

    def step_seconds(self) -> float | None:
        """Seconds of a step by now; None until a few stretches were seen."""
        if len(self.stretches) < 3:
            return None
        every, newest = list(self.stretches), self.stretches[-1].end
        counts = [s.steps * 0.5 ** ((newest - s.end) / HALF_LIFE) for s in every]
        inside = sum(count for count, s in zip(counts, every, strict=True) if not s.evaluations)
        # Epochs shorter than a stretch: steps and evaluations cannot be told apart, and need not be. A few stretches
        # within epochs, of a time when steps were slow, must not stand for all.
        apart = inside >= sum(counts) / 2
        seen = [(s, count) for s, count in zip(every, counts, strict=True) if not (apart and s.evaluations)]
        most = OUTLIER * _median([(s.seconds / s.steps, float(s.steps)) for s, _ in seen])
        seconds = sum(count * min(s.seconds / s.steps, most) for s, count in seen)
        return float(seconds / sum(count for _, count in seen))

    def evaluation_seconds(self) -> float:
        """Seconds of an evaluation: the median of those seen, else a guess from `evaluation_steps`."""
        step = self.step_seconds() or 0.0
        if sum(not s.evaluations for s in self.stretches) < 3:
            return 0.0 if any(s.evaluations for s in self.stretches) else self.evaluation_steps * step
        seen = [(s.seconds - s.steps * step) / s.evaluations for s in self.stretches if s.evaluations]
        return max(0.0, statistics.median(seen)) if seen else self.evaluation_steps * step

    def left(self, now: float) -> float | None:
        """Seconds left at `now`, evaluations included; None while there is too little to go by."""
        step = self.step_seconds()
        if step is None or self.latest is None:
            return None
        moment, done = self.latest
        evaluations = -(-self.total // self.per_epoch) - max(0, done - 1) // self.per_epoch
        whole = (self.total - done) * step + evaluations * self.evaluation_seconds()
        return max(0.0, whole - max(0.0, now - moment))


def _median(weighted: list[tuple[float, float]]) -> float:
    """The value below which half of the weight lies."""
    half, seen = sum(weight for _, weight in weighted) / 2, 0.0
    for value, weight in sorted(weighted):
        seen += weight
        if seen >= half:
            return value
    return 0.0


def clock_time(seconds: float) -> str:
    """`0:42`, `12:05`, `1:02:03`."""
    whole = int(seconds)
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"
