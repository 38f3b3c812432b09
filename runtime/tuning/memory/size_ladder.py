"""Ladder: which micro-batch to try next, by the peaks of those before. No torch.

What a part of n samples takes beyond what is held anyway is at most n times what one sample takes, so from a part that
was tried a larger one is predicted by proportion: never too low, and the closer the larger the part. Sizes double
while that fits, then come as near to the ceiling as the prediction lets them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

NEAR = 1.08
"""A step of less than this is not worth a try."""
EVEN = 4
"""Sizes above four times this are multiples of it, but for the whole."""


@dataclass
class SizeLadder:
    """A search that is going on. Sizes in samples, memory in bytes."""

    most: int
    """The batch, or all data if that is less."""
    base: int
    """Memory held whatever the size; rather too low than too high."""
    ceiling: int
    least: int = 1
    peaks: dict[int, int] = field(default_factory=dict)
    """What was tried and fits."""
    failed: int | None = None
    """The smallest size that was tried and does not fit."""

    @property
    def largest(self) -> int:
        """The largest size that fits; 0 if none does."""
        return max(self.peaks, default=0)

    def predicted(self, size: int) -> int:
        """Memory at the peak with so many samples at a time."""
        if not self.peaks:
            return self.base
        return self.base + (self.peaks[self.largest] - self.base) * size // self.largest

    def note(self, size: int, peak: int | None) -> None:
        """What became of a try; None if it did not fit."""
        if peak is None or peak > self.ceiling:
            self.failed = min(size, self.failed or size)
        else:
            self.peaks[size] = peak

    def next(self) -> int | None:
        """The size to try next; None if there is nothing more to learn."""
        if not self.peaks:
            return None if self.failed else min(self.least, self.most)
        size = min(2 * self.largest, self.most)
        if self.failed is not None:
            size = min(size, (self.largest + self.failed) // 2)
        grown = self.peaks[self.largest] - self.base
        if grown > 0:
            size = min(size, self.largest * max(0, self.ceiling - self.base) // grown)
        if 4 * EVEN < size < self.most:
            size -= size % EVEN
        return size if size >= max(self.largest * NEAR, self.largest + 1) or self._ends_at(size) else None

    def _ends_at(self, size: int) -> bool:
        return size == self.most > self.largest
