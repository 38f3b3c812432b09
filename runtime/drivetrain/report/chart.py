"""Draws charts: the axes with readable ticks, and every line as a path; the page's template makes SVG of them.

Colors and strokes come from the page's style, so one picture serves light and dark mode. Matplotlib is not used, because a
report is written at the end of every run: importing it and drawing nine plots took more CPU time than everything between the
last step and the end of the process, and it is 57 MB with its dependencies.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from drivetrain.report.blocks import Chart
from drivetrain.report.formatting import format_tick
from drivetrain.report.log_series import Point, compute_running_mean, thin_points

LEFT, RIGHT, TOP, BOTTOM = 50, 390, 10, 184
"""Edges of the chart in a picture of 400 x 220 pixels."""
STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
"""Distances between ticks, times a power of ten."""
MAX_AXIS_VALUE = 1e280
"""The limits of an axis: with a margin they must be numbers, too."""
FINE_TICK_DECADES = 2.5
"""Decades of a logarithmic axis up to which 2 and 5 are ticks, too."""
LINE_COLORS = 8
"""Number of line colors that the page defines: `.line-1` and so on."""
HEADROOM = 1.14
"""The top of an axis that starts at zero, as a multiple of the largest value."""
NOISY_LENGTH = 100
"""Points from which on a line is pale, below its running mean."""


@dataclass(frozen=True)
class Axis:
    """An axis of a chart from `low` to `high`, or from their powers of ten."""

    low: float
    high: float
    is_logarithmic: bool = False

    def locate(self, value: float) -> float:
        """Compute the place of a value, from 0 at the low end to 1 at the high end."""
        if self.is_logarithmic:
            value = math.log10(value)
        return (value - self.low) / (self.high - self.low)

    def choose_ticks(self, count: int, *, integer: bool = False) -> list[float]:
        """Choose readable values on the axis; at most `count` if they are evenly spaced."""
        if not self.is_logarithmic:
            return choose_even_ticks(self.low, self.high, count, integer=integer)
        factors = (1.0, 2.0, 5.0) if self.high - self.low < FINE_TICK_DECADES else (1.0,)
        lowest, highest = math.floor(self.low), math.ceil(self.high)
        stride = max(1, math.ceil((highest - lowest) / count))
        powers = [10.0**exponent for exponent in range(lowest, highest + 1, stride)]
        return [tick for power in powers for factor in factors if 0 <= self.locate(tick := power * factor) <= 1]


def fit_axis(values: Iterable[float], margin: float, *, from_zero: bool = False, is_logarithmic: bool = False) -> Axis:
    """Return the axis that shows all values with a margin, which is a share of their range."""
    finite_values = [max(-MAX_AXIS_VALUE, min(value, MAX_AXIS_VALUE)) for value in values]
    if from_zero:
        return Axis(0.0, max([0.0, *finite_values]) * HEADROOM or 1.0)
    if is_logarithmic:
        finite_values = [math.log10(max(1 / MAX_AXIS_VALUE, value)) for value in finite_values if value > 0]
    low, high = min(finite_values, default=0.0), max(finite_values, default=1.0)
    room = margin * (high - low)
    if high - low <= 1e-9 * max(abs(low), abs(high)):
        room = 0.05 * max(abs(low), abs(high)) or 0.05
    return Axis(low - room, high + room, is_logarithmic)


def choose_even_ticks(low: float, high: float, count: int, *, integer: bool = False) -> list[float]:
    """Choose ticks at equal distances between two values."""
    power = 10.0 ** math.floor(math.log10((high - low) / count))
    distances = [power * step * scale for scale in (1, 10) for step in STEPS[:-1]]
    if integer:
        distances = [step for step in distances if step >= 1 and step == round(step)] or [1.0]
    for distance in distances:
        lowest, highest = math.ceil(low / distance - 1e-9), math.floor(high / distance + 1e-9)
        if highest - lowest < count:
            break
    # Rounded to the distance's own digits: 3 * 0.1 is not 0.3.
    digits = max(0, 2 - math.floor(math.log10(distance)))
    return [round(position * distance, digits) + 0.0 for position in range(lowest, highest + 1)]


@dataclass
class Drawing:
    """The elements of a chart: lines as (class, path), labels as (class, x, y, anchor, text)."""

    x: Axis
    y: Axis
    paths: list[tuple[str, str]] = field(default_factory=list)
    labels: list[tuple[str, float, float, str, str]] = field(default_factory=list)

    def locate_x(self, value: float) -> float:
        """Return pixels from the left."""
        return round(LEFT + self.x.locate(value) * (RIGHT - LEFT), 1)

    def locate_y(self, value: float) -> float:
        """Return pixels from the top."""
        return round(BOTTOM - self.y.locate(value) * (BOTTOM - TOP), 1)

    def draw_line(self, points: Sequence[Point], style: str) -> None:
        """Draw a line through points; nothing without points."""
        if points:
            self.paths.append((style, "M" + "L".join(f"{self.locate_x(x)} {self.locate_y(y)}" for x, y in points)))

    def draw_axes(self, chart: Chart) -> None:
        """Draw grid lines, the ticks of both axes, and the name of the x axis at its right end."""
        for value in self.y.choose_ticks(6 if self.y.is_logarithmic else 5):
            height = self.locate_y(value)
            self.paths.append(("grid", f"M{LEFT} {height}H{RIGHT}"))
            self.labels.append(("tick", LEFT - 4, height + 4, "end", format_tick(value)))
        self.paths.append(("grid", f"M{LEFT} {BOTTOM}H{RIGHT}"))
        for value in self.x.choose_ticks(6, integer=chart.axis in ("step", "epoch")):
            self.labels.append(("tick", self.locate_x(value), BOTTOM + 15, "middle", format_tick(value)))
        self.labels.append(("tick", RIGHT, BOTTOM + 30, "end", chart.axis))

    def draw_marks(self, chart: Chart) -> None:
        """Draw the limit and the marked places with their names."""
        if chart.limit:
            label, value = chart.limit
            height = self.locate_y(value)
            self.paths.append(("limit", f"M{LEFT} {height}H{RIGHT}"))
            self.labels.append(("over", RIGHT, height - 3, "end", f"{label} {format_tick(value)}"))
        for row, (label, value) in enumerate(chart.marks):
            x = self.locate_x(value)
            self.paths.append(("mark", f"M{x} {BOTTOM}V{TOP}"))
            # A label at the left of its line, or at its right where there is no room.
            anchor, gap = ("end", -4) if x > (LEFT + RIGHT) / 2 else ("start", 4)
            self.labels.append(("over", x + gap, TOP + 10 + 12 * row, anchor, label))


def draw_chart(chart: Chart) -> Drawing:
    """Draw the lines of a chart, or the dots of a scatter plot."""
    xs = [x for line in chart.lines for x in line.xs] + [x for _, x in chart.marks]
    ys = [y for line in chart.lines for y in line.ys] + ([chart.limit[1]] if chart.limit else [])
    y_axis = fit_axis(ys, 0.08, from_zero=chart.from_zero, is_logarithmic=chart.is_logarithmic)
    drawing = Drawing(fit_axis(xs, 0.02), y_axis)
    drawing.draw_axes(chart)
    for index, line in enumerate(chart.lines):
        series, color = line.keep_positive() if chart.is_logarithmic else line, f"line-{index % LINE_COLORS + 1}"
        points = thin_points(series)
        if chart.is_scatter:
            dots = "".join(f"M{drawing.locate_x(x)} {drawing.locate_y(y)}h0" for x, y in points)
            drawing.paths.append((f"dots {color}", dots))
        elif len(series) < NOISY_LENGTH:
            drawing.draw_line(points, f"curve {color}")
        else:
            drawing.draw_line(points, f"curve pale {color}")
            drawing.draw_line(compute_running_mean(series), f"curve {color}")
    if chart.is_scatter:
        ends = max(drawing.x.low, drawing.y.low), min(drawing.x.high, drawing.y.high)
        drawing.draw_line([(end, end) for end in ends], "limit")
    drawing.draw_marks(chart)
    return drawing
