"""A series of values over steps or seconds, read from a log."""

from __future__ import annotations

import itertools
import math
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from drivetrain.system.run_records import parse_number, read_number

Point = tuple[float, float]
WIDE_RANGE = 50
"""The largest value relative to the smallest from which on a logarithmic scale shows more."""


@dataclass
class Series:
    """Values `ys` at increasing `xs`. Both are finite; `broken` counts values that were not."""

    name: str
    xs: array[float] = field(default_factory=lambda: array("d"))
    ys: array[float] = field(default_factory=lambda: array("d"))
    broken: int = 0

    def __len__(self) -> int:
        return len(self.xs)

    def add(self, x: float, y: float) -> None:
        """Append a value, and replace existing values at this x or later."""
        self.drop(x)
        if math.isfinite(y):
            self.xs.append(x)
            self.ys.append(y)
        else:
            self.broken += 1

    def drop(self, x: float) -> None:
        """Remove everything from `x` on."""
        while self.xs and self.xs[-1] >= x:
            self.xs.pop()
            self.ys.pop()

    def scale(self, name: str, x: float = 1.0, y: float = 1.0) -> Series:
        """Return the same values in other units."""
        return Series(name, array("d", (v * x for v in self.xs)), array("d", (v * y for v in self.ys)), self.broken)

    def keep_positive(self) -> Series:
        """Return the positive values only: during an evaluation or a checkpoint no samples are trained."""
        points = [(x, y) for x, y in zip(self.xs, self.ys, strict=True) if y > 0]
        return Series(self.name, array("d", (x for x, _ in points)), array("d", (y for _, y in points)), self.broken)

    def accumulate(self, name: str) -> Series:
        """Return the increase of a counter since its first value; a drop means that it was restarted."""
        increase, total = Series(name), 0.0
        for x, previous, current in zip(self.xs, self.ys[:1] + self.ys, self.ys, strict=False):
            total += max(0.0, current - previous)
            increase.add(x, total)
        return increase


def collect_series(rows: Iterable[Mapping[str, object]], axis: str, *, continues: bool = False) -> dict[str, Series]:
    """Collect a series for every number in the rows, along `axis`.

    Args:
        rows: rows of a log; those without `axis` are skipped.
        axis: the key of x.
        continues: whether x continues from its last value where it drops because a run was resumed; otherwise the steps
            were repeated, and the first attempt is dropped.
    """
    by_key: dict[str, Series] = {}
    latest, offset = -math.inf, 0.0
    for row in rows:
        x = read_number(row, axis)
        if x is None:
            continue
        if x + offset < latest:
            if continues:
                offset = latest
            else:
                for series in by_key.values():
                    series.drop(x)
        latest = x + offset
        for key in row:
            if key != axis and (y := parse_number(row[key])) is not None:
                by_key.setdefault(key, Series(key)).add(latest, y)
    return by_key


def has_wide_range(values: Iterable[float]) -> bool:
    """Return whether a logarithmic scale suits the values: all are above 0, and the largest is many times the smallest."""
    ys = list(values)
    return min(ys) > 0 and max(ys) > WIDE_RANGE * min(ys)


def thin_points(series: Series, limit: int = 1000) -> list[Point]:
    """Reduce a series to `limit` points; every interval keeps its minimum and maximum, so no spike is lost."""
    points = list(zip(series.xs, series.ys, strict=True))
    if len(points) <= limit:
        return points
    intervals = (limit - 2) // 2
    selected = [points[0]]
    middle = points[1:-1]
    for index in range(intervals):
        interval = middle[index * len(middle) // intervals : (index + 1) * len(middle) // intervals]
        low, high = min(interval, key=lambda p: p[1]), max(interval, key=lambda p: p[1])
        selected += sorted({low, high})
    return [*selected, points[-1]]


def compute_running_mean(series: Series, windows: int = 60) -> list[Point]:
    """Compute the running mean over a sixtieth of the series, at most 300 points."""
    half_window, stride = max(1, len(series) // windows // 2), max(1, math.ceil(len(series) / 299))
    sums = [0.0, *itertools.accumulate(series.ys)]
    positions = [*range(0, len(series) - 1, stride), len(series) - 1]
    ends = [(i, max(0, i - half_window), min(len(series), i + half_window + 1)) for i in positions]
    return [(series.xs[i], (sums[stop] - sums[start]) / (stop - start)) for i, start, stop in ends]
