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

    max_size: int
    """The batch size, or the number of samples if that is smaller."""
    base: int
    """Memory in use whatever the size; rather too low than too high."""
    ceiling: int
    min_size: int = 1
    peaks: dict[int, int] = field(default_factory=dict)
    """Peaks of the sizes that fit."""
    smallest_failed: int | None = None
    """The smallest size that did not fit."""

    @property
    def largest(self) -> int:
        """The largest size that fits; 0 if none does."""
        return max(self.peaks, default=0)

    def predict_peak(self, size: int) -> int:
        """Predicted peak with so many samples at a time."""
        if not self.peaks:
            return self.base
        return self.base + (self.peaks[self.largest] - self.base) * size // self.largest

    def record(self, size: int, peak: int | None) -> None:
        """Record the peak of a tried size; None if it did not fit."""
        if peak is None or peak > self.ceiling:
            self.smallest_failed = min(size, self.smallest_failed or size)
        else:
            self.peaks[size] = peak

    def choose_next(self) -> int | None:
        """The size to try next; None if there is nothing left to try."""
        if not self.peaks:
            return None if self.smallest_failed else min(self.min_size, self.max_size)
        size = min(2 * self.largest, self.max_size)
        if self.smallest_failed is not None:
            size = min(size, (self.largest + self.smallest_failed) // 2)
        added_bytes = self.peaks[self.largest] - self.base
        if added_bytes > 0:
            size = min(size, self.largest * max(0, self.ceiling - self.base) // added_bytes)
        if 4 * MULTIPLES_FROM < size < self.max_size:
            size -= size % MULTIPLES_FROM
        # The whole batch is worth a try however close it is: it needs no micro-batches.
        is_worth_it = size >= max(self.largest * MIN_STEP_FACTOR, self.largest + 1)
        return size if is_worth_it or size == self.max_size > self.largest else None
