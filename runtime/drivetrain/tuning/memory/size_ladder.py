"""Chooses which micro-batch to try next, from the peaks of those before; without torch.

A micro-batch of n samples adds at most n times the memory of one sample. So the peak of a larger size is predicted in
proportion from a tried one: never too low, and more precise the larger the tried one. Sizes double while they fit, then
come as close to the limit as the prediction allows.
"""

from __future__ import annotations

from dataclasses import dataclass, field

MIN_STEP_FACTOR = 1.08
"""A step by a smaller factor is not worth a try."""
MULTIPLES_FROM = 4
"""Sizes above four times this are multiples of it, except for the whole batch."""


@dataclass
class SizeLadder:
    """The state of a search. Sizes in samples, memory in bytes."""

    most: int
    """The batch size, or the number of samples if that is smaller."""
    base: int
    """Memory in use whatever the size; rather too low than too high."""
    ceiling: int
    least: int = 1
    peaks: dict[int, int] = field(default_factory=dict)
    """Peaks of the sizes that fit."""
    failed: int | None = None
    """The smallest size that did not fit."""

    @property
    def largest(self) -> int:
        """The largest size that fits; 0 if none does."""
        return max(self.peaks, default=0)

    def predicted(self, size: int) -> int:
        """Predicted peak with so many samples at a time."""
        if not self.peaks:
            return self.base
        return self.base + (self.peaks[self.largest] - self.base) * size // self.largest

    def note(self, size: int, peak: int | None) -> None:
        """Record the peak of a tried size; None if it did not fit."""
        if peak is None or peak > self.ceiling:
            self.failed = min(size, self.failed or size)
        else:
            self.peaks[size] = peak

    def next(self) -> int | None:
        """The size to try next; None if there is nothing left to try."""
        if not self.peaks:
            return None if self.failed else min(self.least, self.most)
        size = min(2 * self.largest, self.most)
        if self.failed is not None:
            size = min(size, (self.largest + self.failed) // 2)
        grown = self.peaks[self.largest] - self.base
        if grown > 0:
            size = min(size, self.largest * max(0, self.ceiling - self.base) // grown)
        if 4 * MULTIPLES_FROM < size < self.most:
            size -= size % MULTIPLES_FROM
        return size if size >= max(self.largest * MIN_STEP_FACTOR, self.largest + 1) or self._ends_at(size) else None

    def _ends_at(self, size: int) -> bool:
        return size == self.most > self.largest
