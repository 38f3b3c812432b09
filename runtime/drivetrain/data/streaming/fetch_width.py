"""How many shards are fetched at the same time: the number is doubled as long as that brings more bytes a second."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from drivetrain.system.units import format_bytes


class Decision(enum.Enum):
    """What was decided about the number of shards that are fetched at the same time (the width)."""

    LINK_IS_FULL = enum.auto()
    NOBODY_WAITS = enum.auto()
    NO_SPACE = enum.auto()
    AT_MAXIMUM = enum.auto()
    TRY_MORE = enum.auto()


START_WIDTH, MAX_WIDTH = 4, 32
MIN_GAIN = 1.15
"""Twice as many at a time must raise the rate by this factor; otherwise the link counts as full."""
MAX_WAITING_SHARE = 0.02
"""The width stays if batches wait for shards during less than this share of the time."""
MEASURED_ROUNDS = 2
"""Rounds, each of `width` shards, that are measured before a decision."""


@dataclass
class FetchWidth:
    """How many shards are fetched at a time, and why."""

    width: int = START_WIDTH
    reason: str = "nothing was measured yet"
    rates: dict[int, float] = field(default_factory=dict)
    """Measured bytes per second, by width."""
    link_is_full: bool = False
    """Whether a larger width was tried and brought no more bytes per second."""
    last_counts: Mapping[str, float] = field(default_factory=dict)
    """The numbers of `FetchCounts`, and `clock` in seconds, at the last decision."""
    decision: Decision | None = None
    reported: tuple[int, Decision | None] | None = None
    """Width and decision that were reported last."""

    def take_news(self) -> bool:
        """Return whether there is a decision that was not reported yet, and mark it as reported."""
        present = self.width, self.decision
        if not self.rates or present == self.reported:
            return False
        self.reported = present
        return True

    def decide(self, counts: Mapping[str, float], seconds: float, max_by_cache: int) -> bool:
        """Choose the width by what was fetched since the last decision; returns False while too little was fetched.

        Args:
            counts: the numbers of `FetchCounts.to_json`, since the start of the process.
            seconds: time of a monotonic clock.
            max_by_cache: the largest width for which the cache has space.
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
        waiting = f"batches stand still for {waiting_share:.0%} of the time"
        half_width = self.width // 2
        rate_at_half = self.rates.get(half_width, 0.0)
        # A full link is final: it is checked first. It shows after a doubling that brought no gain, which is undone.
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
            self.reason = f"{measured}, and {waiting}: {self.width} are tried"
        elif max_by_cache < MAX_WIDTH:
            self.decision = Decision.NO_SPACE
            self.reason = f"{measured}, {waiting}, and the cache has no space for more at a time"
        else:
            self.decision = Decision.AT_MAXIMUM
            self.reason = f"{measured}, {waiting}, and more are not tried"
