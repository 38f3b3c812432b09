"""How many shards are fetched at the same time: as many as bring more, by what was measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from runtime.system.units import format_bytes

START, MOST = 4, 32
GAIN = 1.15
"""Twice as many at a time must bring so many times the bytes a second, or the link is full."""
STILL = 0.02
"""Share of the time for which batches may stand still for shards without a change."""
ROUNDS = 2
"""Rounds of shards that are measured before a decision."""


@dataclass
class FetchWidth:
    """The number, and what it was decided by."""

    width: int = START
    reason: str = "nothing was measured yet"
    rates: dict[int, float] = field(default_factory=dict)
    """Bytes a second, by the number at a time."""
    full: bool = False
    """Whether more at a time were tried and brought no more."""
    before: Mapping[str, float] = field(default_factory=dict)
    """The counts at the last decision."""
    told: tuple[int, bool, str] | None = None
    """Width, whether the link is full and the kind of reason that were told last."""

    def news(self) -> bool:
        """Whether something was decided that was not told yet; asking tells it."""
        now = self.width, self.full, self.reason.rpartition(", and ")[2][:12]
        if not self.rates or now == self.told:
            return False
        self.told = now
        return True

    def decide(self, counts: Mapping[str, float], seconds: float, most: int) -> bool:
        """Look at what was fetched since the last decision; returns whether something was decided.

        Args:
            counts: those of `FetchCounts`, since the start of the process.
            seconds: of the clock, on the same scale at every call.
            most: the largest number for which the cache has space.
        """
        now = {**counts, "clock": seconds}
        if not self.before:
            self.before = now
            return False
        fetches, size, busy, waited, clock = (
            now[key] - self.before.get(key, 0) for key in ("fetches", "bytes", "busy", "waited", "clock")
        )
        if fetches < ROUNDS * self.width or busy <= 0:
            return False
        self.before = now
        self.rates[self.width] = rate = size / busy
        self._choose(rate, min(1.0, waited / max(clock, 1e-9)), max(1, most))
        return True

    def _choose(self, rate: float, still: float, most: int) -> None:
        brought = f"{self.width} at a time bring {format_bytes(int(rate))}/s"
        fewer = self.rates.get(self.width // 2, 0.0)
        if self.full:
            self.reason = f"{brought}, and more at a time brought no more"
        elif self.width > START and rate < GAIN * fewer:
            self.full, self.width = True, self.width // 2
            self.reason = (
                f"{brought}, and {self.width} at a time brought {format_bytes(int(fewer))}/s: more bring no more"
            )
        elif still < STILL:
            self.reason = f"{brought}, and batches do not stand still for them"
        elif 2 * self.width > min(most, MOST):
            self.reason = f"{brought}, batches stand still for {still:.0%} of the time, and " + (
                "the cache has no space for more at a time" if most < MOST else "more are not tried"
            )
        else:
            self.width *= 2
            self.reason = f"{brought}, and batches stand still for {still:.0%} of the time: {self.width} are tried"
