"""Prints how far a download is."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from drivetrain.system.units import format_bytes

INTERVAL_SECONDS = 5.0
"""Time between two lines."""


@dataclass
class DownloadProgress:
    """Prints amount, rate and remaining time of a download every few seconds; threads may share it."""

    subject: str
    """Begins each line."""
    total: int
    """Bytes of all files."""
    say: Callable[[str], None]
    done: int = 0
    _begun_at: float = field(default_factory=time.monotonic)
    _printed_at: float = field(default_factory=time.monotonic)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, count: int) -> None:
        """Count bytes on the disk; a negative number for bytes that are downloaded again."""
        with self._lock:
            self.done += count
            now = time.monotonic()
            if now - self._printed_at < INTERVAL_SECONDS or self.done >= self.total:
                return
            self._printed_at = now
        rate = max(1.0, self.done / (now - self._begun_at))
        seconds_left = (self.total - self.done) / rate
        time_left = f"{seconds_left:,.0f} s" if seconds_left < 90 else f"{seconds_left / 60:,.0f} min"
        amount = f"{format_bytes(self.done)} of {format_bytes(self.total)}"
        self.say(f"{self.subject}: {amount}, {format_bytes(int(rate))}/s, about {time_left} left")
