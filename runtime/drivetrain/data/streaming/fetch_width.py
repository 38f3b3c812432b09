"""How many shards are fetched at the same time: twice as many as long as that brings more bytes a second."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from drivetrain.system.units import format_bytes


class Decision(enum.Enum):
    """What was decided about the number of shards at a time."""

    LINK_IS_FULL = enum.auto()
    NOBODY_WAITS = enum.auto()
    NO_SPACE = enum.auto()
    AT_MAXIMUM = enum.auto()
    TRY_MORE = enum.auto()


START_WIDTH, MAX_WIDTH = 4, 32
MIN_GAIN = 1.15
"""Twice as many at a time must raise the rate by this factor; otherwise the link counts as full."""
MAX_WAITING_SHARE = 0.02
"""Up to this share of the time that batches wait for shards, nothing is changed."""
MEASURED_ROUNDS = 2
"""Rounds of shards that are measured before a decision."""


@dataclass
class FetchWidth:
    """How many shards are fetched at a time, and why."""

    width: int = START_WIDTH
    reason: str = "nothing was measured yet"
    rates: dict[int, float] = field(default_factory=dict)
    """Bytes a second, by the number at a time."""
    link_is_full: bool = False
    """Whether more at a time were tried and brought no more."""
    last_counts: Mapping[str, float] = field(default_factory=dict)
    """The counts and the time of the last decision."""
    decision: Decision | None = None
    reported: tuple[int, Decision | None] | None = None
    """Width and decision that were reported last."""

    def take_news(self) -> bool:
        """Whether something was decided that was not reported yet; from then on it counts as reported."""
        present = self.width, self.decision
        if not self.rates or present == self.reported:
            return False
        self.reported = present
        return True

    def decide(self, counts: Mapping[str, float], seconds: float, max_by_cache: int) -> bool:
        """Look at what was fetched since the last decision; returns whether something was decided.

        Args:
            counts: those of `FetchCounts`, since the start of the process.
            seconds: of the clock, on the same scale at every call.
            max_by_cache: the largest number for which the cache has space.
        """
        now = {**counts, "clock": seconds}
        if not self.last_counts:
            self.last_counts = now
            return False
        fetches, fetched_bytes, busy, waited, elapsed = (
            now[key] - self.last_counts.get(key, 0) for key in ("fetches", "bytes", "busy", "waited", "clock")
        )
        if fetches < MEASURED_ROUNDS * self.width or busy <= 0:
            return False
        self.last_counts = now
        self.rates[self.width] = rate = fetched_bytes / busy
        self._choose(rate, min(1.0, waited / max(elapsed, 1e-9)), max(1, max_by_cache))
        return True

    def _choose(self, rate: float, waiting_share: float, max_by_cache: int) -> None:
        measured = f"{self.width} at a time bring {format_bytes(int(rate))}/s"
        wait = f"batches stand still for {waiting_share:.0%} of the time"
        half_width = self.width // 2
        rate_at_half = self.rates.get(half_width, 0.0)
        # A full link is final. That it is full shows only after a doubling, and is undone before anything else counts.
        if self.link_is_full:
            self.decision = Decision.LINK_IS_FULL
            self.reason = f"{measured}, and more at a time brought no more"
        elif self.width > START_WIDTH and rate < MIN_GAIN * rate_at_half:
            self.link_is_full = True
            self.width = half_width
            self.decision = Decision.LINK_IS_FULL
            self.reason = f"{measured}, and {half_width} at a time brought {format_bytes(int(rate_at_half))}/s: more bring no more"
        elif waiting_share < MAX_WAITING_SHARE:
            self.decision = Decision.NOBODY_WAITS
            self.reason = f"{measured}, and batches do not stand still for them"
        elif 2 * self.width <= min(max_by_cache, MAX_WIDTH):
            self.width = 2 * self.width
            self.decision = Decision.TRY_MORE
            self.reason = f"{measured}, and {wait}: {self.width} are tried"
        elif max_by_cache < MAX_WIDTH:
            self.decision = Decision.NO_SPACE
            self.reason = f"{measured}, {wait}, and the cache has no space for more at a time"
        else:
            self.decision = Decision.AT_MAXIMUM
            self.reason = f"{measured}, {wait}, and more are not tried"
