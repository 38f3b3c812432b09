"""The axes of a plot as inline SVG: limits, readable ticks, grid, labels.

Drawn here and not by matplotlib, because a report is written at the end of every run: importing matplotlib and drawing
nine plots took more CPU time than all else between the last step and the end of the process.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

from runtime.report.formatting import tick
from runtime.report.log_series import Point

WIDTH, HEIGHT = 400, 220
LEFT, RIGHT, TOP, BOTTOM = 50.0, 390.0, 9.9, 183.7
"""Edges of the plot in the picture, in pixels."""
STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
"""Distances between ticks, times a power of ten."""
MUTED, GRID = "var(--muted)", "var(--grid)"
LARGEST = 1e280
"""The limits of an axis, and of a logarithmic one also the inverse: with a margin they must be numbers, too."""
FEW = 2.5
"""Decades of a logarithmic axis up to which 2 and 5 are ticks, too."""


@dataclass(frozen=True)
class Axis:
    """The values that an axis shows."""

    low: float
    high: float
    logarithmic: bool = False

    def share(self, value: float) -> float:
        """Where a value lies, from 0 at the low end to 1 at the high end."""
        if self.logarithmic:
            low, high = math.log(self.low), math.log(self.high)
            return (math.log(value) - low) / (high - low)
        return (value - self.low) / (self.high - self.low)

    def ticks(self, count: int, *, integer: bool = False) -> list[float]:
        """Readable values on the axis; at most `count` if they are evenly spaced."""
        if self.logarithmic:
            return _decades(self.low, self.high, count) or even(self.low, self.high, count)
        return even(self.low, self.high, count, integer=integer)


def fitted(values: Iterable[float], margin: float, *, logarithmic: bool = False) -> Axis:
    """The axis that shows all values with a margin, which is a share of their range."""
    least = 1 / LARGEST if logarithmic else -LARGEST
    kept = [max(least, min(value, LARGEST)) for value in values if value > 0 or not logarithmic]
    low, high = (min(kept), max(kept)) if kept else (1.0, 10.0) if logarithmic else (0.0, 1.0)
    if logarithmic:
        low, high = math.log(low), math.log(high)
    room = margin * (high - low)
    if high - low <= 1e-9 * max(abs(low), abs(high)):
        room = 0.05 * max(abs(low), abs(high)) or 0.05
    low, high = low - room, high + room
    return Axis(math.exp(low), math.exp(high), True) if logarithmic else Axis(low, high)


def even(low: float, high: float, count: int, *, integer: bool = False) -> list[float]:
    """Ticks at equal distances between two values."""
    power = 10.0 ** math.floor(math.log10((high - low) / count))
    distances = [power * step * scale for scale in (1, 10) for step in STEPS[:-1]]
    if integer:
        distances = [step for step in distances if step >= 1 and step == round(step)] or [1.0]
    for distance in distances:
        first, last = math.ceil(low / distance - 1e-9), math.floor(high / distance + 1e-9)
        if last - first < count:
            break
    # Rounded to the distance's own digits: 3 * 0.1 is not 0.3.
    digits = max(0, 2 - math.floor(math.log10(distance)))
    return [round(place * distance, digits) + 0.0 for place in range(first, last + 1)]


def _decades(low: float, high: float, count: int) -> list[float]:
    """Powers of ten, and twice and five times them if there are few; fewer than two say nothing."""
    parts = (1.0, 2.0, 5.0) if math.log10(high / low) < FEW else (1.0,)
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    stride = max(1, math.ceil((last - first) / count))
    powers = [10.0**place for place in range(first, last + 1, stride)]
    found = [part * power for power in powers for part in parts if low <= part * power <= high]
    return found if len(found) > 1 else []


@dataclass(frozen=True)
class Plot:
    """Two axes; turns values into places in the picture."""

    x: Axis
    y: Axis

    def place(self, x: float, y: float) -> tuple[float, float]:
        """Pixels from the left and from the top."""
        return LEFT + self.x.share(x) * (RIGHT - LEFT), BOTTOM - self.y.share(y) * (BOTTOM - TOP)

    def line(self, points: Sequence[Point], style: str, *, stairs: bool = False) -> str:
        """A line through points; with `stairs`, level until the next point."""
        places = [self.place(x, y) for x, y in points]
        if stairs:
            corners = [corner for (_, y), (x, below) in pairwise(places) for corner in ((x, y), (x, below))]
            places = [*places[:1], *corners]
        path = "".join(f"{'L' if index else 'M'}{x:.2f} {y:.2f}" for index, (x, y) in enumerate(places))
        return f'<path d="{path}" style="fill: none; {style}"/>' if path else ""

    def dots(self, points: Sequence[Point], radius: float, style: str) -> str:
        """A circle at each point."""
        places = [self.place(x, y) for x, y in points]
        return "".join(f'<circle cx="{x:.2f}" cy="{y:.2f}" r="{radius:g}" style="{style}"/>' for x, y in places)

    def rows(self, ticks: Sequence[float]) -> str:
        """Grid lines and labels of the y axis."""
        found = []
        for value in ticks:
            height = BOTTOM - self.y.share(value) * (BOTTOM - TOP)
            found.append(f'<path d="M{LEFT:g} {height:.2f}H{RIGHT:g}" style="stroke: {GRID}; stroke-width: 0.8"/>')
            found.append(text(tick(value), LEFT - 3.5, height + 4.37, "end"))
        return "".join(found)

    def columns(self, ticks: Sequence[float], label: str, name: Callable[[float], str] = tick) -> str:
        """The x axis with ticks, their labels, and its own label at the right."""
        found = [f'<path d="M{LEFT:g} {BOTTOM:g}H{RIGHT:g}" style="stroke: {GRID}; stroke-width: 0.8"/>']
        for value in ticks:
            left = LEFT + self.x.share(value) * (RIGHT - LEFT)
            found.append(f'<path d="M{left:.2f} {BOTTOM:g}v3" style="stroke: {MUTED}; stroke-width: 0.8"/>')
            found.append(text(name(value), left, BOTTOM + 15.24, "middle"))
        return "".join([*found, text(label, RIGHT, BOTTOM + 27.74, "end")])


def text(words: str, x: float, y: float, anchor: str) -> str:
    """A label; `anchor` is the part of it that lies at x: start, middle, end."""
    style = f"font-size: 11.5px; text-anchor: {anchor}; fill: {MUTED}"
    return f'<text style="{style}" x="{x:.2f}" y="{y:.2f}">{escape(words)}</text>'


def picture(title: str, name: str, around: Iterable[str], inside: Iterable[str]) -> str:
    """The picture of a plot; what is inside is cut at its edges. `name` makes the ids unique on the page."""
    edge = f'<rect x="{LEFT:g}" y="{TOP:g}" width="{RIGHT - LEFT:g}" height="{BOTTOM - TOP:g}"/>'
    body = (
        f'<defs><clipPath id="{name}-edge">{edge}</clipPath></defs>'
        f'{"".join(around)}\n<g clip-path="url(#{name}-edge)">{"".join(inside)}</g>'
    )
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">{body}</svg>'
