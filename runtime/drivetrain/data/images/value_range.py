"""The range of raw pixel values, and the scale that values of this range are on."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Range = tuple[float, float]
"""Values that are black and white."""
BYTES, SHARES, FULL = (0.0, 255.0), (0.0, 1.0), (0.0, 65535.0)
"""Scales of 8-bit values, of shares of white, and of 16-bit values."""
COLORS = (BYTES, SHARES, FULL)
"""Scales of the same colors."""
_MIN_BYTE_HIGH = 16
"""Fractions are taken for resized bytes if their largest value is at least this."""


def find_scale(low: float, high: float, *, whole_numbers: bool) -> Range:
    """The scale of values from `low` to `high`; `whole_numbers` says whether all of them are whole."""
    if low >= 0 and high <= 1:
        return SHARES
    if low >= 0 and high <= 255 and (whole_numbers or high >= _MIN_BYTE_HIGH):
        return BYTES
    if whole_numbers and 0 <= low < 2**14 and 2**15 <= high < 2**16:
        return FULL
    return (low, high) if low < high else SHARES


def measure_array(values: npt.NDArray[Any]) -> tuple[float, float, bool]:
    """Smallest and largest of the finite values, and whether all values are whole numbers."""
    if values.dtype.kind in "iu":
        return float(values.min()), float(values.max()), True
    finite = np.isfinite(values)
    if not finite.all():
        values = values[finite]
        return (float(values.min()), float(values.max()), False) if len(values) else (0.0, 1.0, False)
    low, high = float(values.min()), float(values.max())
    # Image by image, since most float images have fractions, so that the first one decides.
    whole_numbers = all(bool((part == np.rint(part)).all()) for part in values)
    return low, high, whole_numbers
