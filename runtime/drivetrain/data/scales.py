"""Scales numbers: table columns, series channels, targets. Recognizes codes such as -9999 and distant numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from drivetrain.data.formats.column_values import LARGEST, Mask, Numbers

MIN_ROWS = 20
"""Smallest number of values among which some can be called codes."""
_SAMPLE = 10_000
"""Largest number of values used to find the center of a column."""
_MAX_CODES, _MAX_CODE_SHARE = 3, 20
"""Codes allowed at each end of the sample: 3 distinct values, or a twentieth of them."""
CODE_WIDTHS, SMALL_CODE_WIDTHS, SPIKE_WIDTHS = 2.0, 5.0, 100.0
"""Smallest distance of a code from all other values, as a multiple of their range: for values written like a code; for
values of two or three digits above numbers that are not negative, which may be large counts; for any other value.

Of 300 columns of 1,000 Cauchy numbers one has such a value; columns of log-normal numbers, counts and money have none.
"""
MIN_DIFFERENT = 10
"""Smallest number of distinct values for which values not written like codes can be codes, too."""
MIN_LIMIT = 10.0
"""Smallest number of deviations that a code counts as; more if another number is farther."""
MAX_DEVIATIONS = 1e6
"""Largest scaled number; larger ones would overflow in the network."""
FAR_MEDIAN, NARROW_SPREAD, MIN_UNIT_ROWS = 0.25, 50, 100
"""Signs of another unit in new rows: the median is outside of the training range by this share of the range; or the
values vary so many times less, in so many rows or more.
"""
_LISTED_ROWS = 3
_REPEATED = [digit * (10**count - 1) // 9 for digit in (7, 8, 9) for count in range(2, 13)]
_CODES = np.array(
    [
        *(number / 10**decimals for number in _REPEATED for decimals in range(3)),
        *(10.0**exponent for exponent in range(8, 30)),
        *(2.0**bits - one for bits in (15, 16, 31, 32, 63, 64) for one in (0, 1)),
    ],
    np.float32,
)
_SMALLEST_CODE, _HUGE = 77, 1e30
NameRow = Callable[[int], str]


def _are_written_like_codes(values: Numbers) -> Mask:
    """Mark 99, -999.9, 8888, 1e9, 32767, 3.4e38 and the like."""
    sizes = np.minimum(np.abs(values), LARGEST)
    is_listed = (sizes >= _SMALLEST_CODE) & np.isin(sizes.astype(np.float32), _CODES)
    return np.asarray((sizes >= _HUGE) | is_listed)


def _find_needed_widths(values: Numbers, low: float | Numbers) -> Numbers:
    """Find the distance at which each value above a range from `low` is a code, if it is written like a code."""
    return np.where((low >= 0) & (np.abs(values) < 1000), SMALL_CODE_WIDTHS, CODE_WIDTHS)


@dataclass(frozen=True)
class Scale:
    """Mean and deviation of the training values, and their range, all without codes."""

    mean: float
    std: float
    low: float = -LARGEST
    high: float = LARGEST

    @property
    def width(self) -> float:
        """Width of the range, or of a deviation if all values are equal."""
        return self.high - self.low or self.std

    @property
    def limit(self) -> float:
        """Number of deviations that a code counts as."""
        return max(MIN_LIMIT, (self.high - self.mean) / self.std, (self.mean - self.low) / self.std)

    def distances(self, values: Numbers) -> Numbers:
        """Compute the distance from the range, in widths of the range; 0 for missing values."""
        return np.nan_to_num(np.maximum(np.maximum(self.low - values, values - self.high), 0) / self.width)

    def find_codes(self, values: Numbers) -> Mask:
        """Mark the values that are codes: far outside of the range. Zero is too common to be a code."""
        distances = self.distances(values)
        is_code = distances > SPIKE_WIDTHS
        candidates = np.flatnonzero(distances > CODE_WIDTHS)
        if len(candidates):
            numbers = values[candidates]
            lows = np.where(numbers > self.high, self.low, -self.high)
            is_far = distances[candidates] > _find_needed_widths(numbers, lows)
            is_code[candidates] |= _are_written_like_codes(numbers) & is_far
            is_code[candidates] &= numbers != 0
        return is_code

    def find_clipped(self, values: Numbers) -> Mask:
        """Mark the codes that are written like codes and so count as `limit` deviations."""
        return self.find_codes(values) & _are_written_like_codes(values)

    def scale(self, values: Numbers) -> npt.NDArray[np.float32]:
        """Compute (value - mean) / std; distant values written like codes count as `limit` deviations."""
        scaled = np.clip((values - self.mean) / self.std, -MAX_DEVIATIONS, MAX_DEVIATIONS)
        # Few columns have values far enough away to be codes.
        far = np.flatnonzero(np.abs(scaled) > self.limit)
        codes = far[self.find_clipped(values[far])]
        scaled[codes] = np.clip(scaled[codes], -self.limit, self.limit)
        return scaled.astype(np.float32)

    def note_codes(
        self,
        name: str,
        values: Numbers,
        name_row: NameRow,
        cure: str = "",
        *,
        is_new: bool = False,
        effect: str = "",
        bad_samples: float = 0.0,
    ) -> list[str]:
        """Return a note on the values that are codes, each with its first rows.

        Args:
            name: column or channel.
            values: numbers in file order; missing values are NaN.
            name_row: function that names the row of a value.
            cure: advice on making the values missing; empty if `data.missing` does it.
            is_new: whether the values come from another file than the training file.
            effect: consequence for the values; empty if they are scaled.
            bad_samples: share of samples without a value that must then be allowed; 0 if it already is.
        """
        codes = np.flatnonzero(self.find_codes(values))
        if not len(codes):
            return []
        different, counts = np.unique(values[codes], return_counts=True)
        listed = different[np.argsort(-counts, kind="stable")][:_LISTED_ROWS].tolist()
        rows = "; ".join(
            f"{format_number(code)} in {_list_rows(codes[values[codes] == code], name_row)}" for code in listed
        )
        rest_text = f"; {len(different) - len(listed):,} more such numbers" if len(different) > len(listed) else ""
        if effect:
            cure = cure or "replace them, or leave out these samples"
        elif is_new:
            effect, cure = "what is predicted there is a guess", cure or "leave the cells empty"
        else:
            effect = "the scale is made without such numbers"
            if _are_written_like_codes(different).any():
                effect += f", and what is written like a code counts as {self.limit:.3g} deviations"
            cure = cure or f"data.missing: [{', '.join(map(format_number, listed))}]"
            cure += f" and data.bad_samples: {math.ceil(bad_samples * 100 + 1) / 100:g}" if bad_samples else ""
        return [
            f"{name} is {rows}{rest_text}, far from {self.low:.4g} to {self.high:.4g} in the other rows: {effect}; if they stand for no value: {cure}"
        ]

    def note_distant(self, name: str, values: Numbers, name_row: NameRow) -> list[str]:
        """Return a note on new values that are far from the training values, or seem to be in another unit."""
        present = values[~np.isnan(values)]
        if not len(present):
            return []
        distances = self.distances(values)
        distant = np.flatnonzero((distances > 1) & ~self.find_codes(values))
        are_most_far = 2 * int(np.count_nonzero(distances > 1)) > len(present)
        reason = self._find_other_unit(present, are_most_far) if len(present) >= MIN_ROWS else None
        if reason is not None:
            return [
                f"{name} is {present.min():.4g} to {present.max():.4g} here and {self.low:.4g} to {self.high:.4g} in training{reason}: "
                "another unit? Convert it to that of training, or what is predicted is a guess"
            ]
        if not len(distant):
            return []
        farthest = distant[np.argmax(distances[distant])]
        return [
            f"{name} is far from the {self.low:.4g} to {self.high:.4g} of the training rows in {len(distant):,} rows, such as "
            f"{values[farthest]:g} in {name_row(int(farthest))}: what is predicted there is a guess"
        ]

    def _find_other_unit(self, present: Numbers, is_far: bool) -> str | None:
        """Find a reason, which can be empty, why all values seem to be in another unit; None if they do not."""
        median, width = float(np.median(present)), self.width
        if is_far or max(self.low - median, median - self.high) > FAR_MEDIAN * width:
            return ""
        # For numbers above 0, 1 to 5 is also far from 1,000 to 5,000.
        if self.low > 0 and median > 0 and max(self.low / median, median / self.high) > self.high / self.low:
            return ""
        spread = float(present.std())
        if len(present) >= MIN_UNIT_ROWS and 0 < spread * NARROW_SPREAD < self.std:
            return f", and varies {self.std / spread:,.0f} times less"
        return None


def fit_scale(values: Numbers) -> Scale:
    """Compute the scale of training values, without NaN.

    Codes count for neither mean nor deviation. If all other numbers are equal, the deviation is 1.
    """
    present = values[~np.isnan(values)] if np.isnan(values).any() else values
    low, high = _find_range(present)
    usual = present if low == present.min() and high == present.max() else present[(present >= low) & (present <= high)]
    # The mean of a million values of 0.1 is not exactly 0.1, which would give a tiny deviation.
    if low == high:
        return Scale(low, 1.0, low, high)
    return Scale(float(usual.mean()), float(usual.std()) or 1.0, low, high)


def _find_range(present: Numbers) -> tuple[float, float]:
    """Find the range of the values without codes.

    The range grows from the center of the values in both directions until the next value is too far away.
    """
    lowest, highest = float(present.min()), float(present.max())
    sample = np.unique([*present[:: -(-len(present) // _SAMPLE)], lowest, highest])
    cut = min(max(_MAX_CODES, len(sample) // _MAX_CODE_SHARE), (len(sample) - 1) // 2)
    if len(present) < MIN_ROWS or len(sample) < 3:
        return lowest, highest
    low, high = float(sample[cut]), float(sample[-1 - cut])
    spike_widths = SPIKE_WIDTHS if len(sample) >= MIN_DIFFERENT else np.inf
    below, above = -np.unique(present[present < low])[::-1], np.unique(present[present > high])
    if low == high:
        # A center of one value first grows to its nearest neighbor.
        neighbors = [*(-below[:1]), *above[:1]]
        nearest = float(min(neighbors, key=lambda value: abs(value - low))) if neighbors else low
        low, high = min(low, nearest), max(high, nearest)
    while True:
        last = low, high
        high = _extend(high, low, above, spike_widths)
        low = -_extend(-low, -high, below, spike_widths)
        if (low, high) == last:
            return low, high


def _extend(high: float, low: float, values: Numbers, spike_widths: float) -> float:
    """Extend the upper end of a range over sorted values up to the first one that is too far away, skipping codes."""
    values = values[values > high]
    while len(values):
        ends = np.append(high, values[:-1])
        gaps, widths = values - ends, np.maximum(ends - low, np.finfo(np.float64).tiny)
        is_far = gaps > _find_needed_widths(values, low) * widths
        is_far[is_far] &= _are_written_like_codes(values[is_far])
        is_spike = gaps > spike_widths * widths
        breaks = np.flatnonzero((is_far | is_spike) & (values != 0))
        if not len(breaks):
            return float(values[-1])
        high = float(ends[breaks[0]])
        if is_spike[breaks[0]]:
            return high
        values = values[breaks[0] + 1 :]
    return high


def format_number(value: float) -> str:
    """Format a number for `data.missing`, with the fewest digits that float32 or float64 reads as this number."""
    if value == int(value) and abs(value) < 1e15:
        return str(int(value))
    short = f"{value:.7g}"
    return short if np.float32(float(short)) == np.float32(value) and np.float32(value) == value else repr(float(value))


def _list_rows(rows: npt.NDArray[np.int64], name_row: NameRow) -> str:
    """Name the first rows, and count the others."""
    named = [name_row(int(row)) for row in rows[:_LISTED_ROWS]]
    return ", ".join(named) + (f" and {len(rows) - len(named):,} more rows" if len(rows) > len(named) else "")


FIELDS = tuple(field.name for field in fields(Scale))


def collect_fields(scales: Sequence[Scale]) -> dict[str, tuple[float, ...]]:
    """Return the numbers of several scales by the name of their field."""
    return {name: tuple(getattr(scale, name) for scale in scales) for name in FIELDS}


def scales_from_json(stored: Mapping[str, Sequence[float]]) -> list[Scale]:
    """Rebuild scales from `collect_fields`, as read back from JSON; fields can be missing or empty."""
    present = {name: stored[name] for name in FIELDS if stored.get(name)}
    return [Scale(**dict(zip(present, numbers, strict=True))) for numbers in zip(*present.values(), strict=True)]
