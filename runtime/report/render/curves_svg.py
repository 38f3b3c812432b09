"""Draws curves as inline SVG that takes colors and font from the page, so one picture serves light and dark mode."""

from __future__ import annotations

import math

from runtime.report.blocks import Curves
from runtime.report.formatting import tick
from runtime.report.log_series import Point, Series, mean, thin
from runtime.report.render.axes_svg import BOTTOM, LEFT, MUTED, RIGHT, TOP, Axis, Plot, fitted, picture, text

SHADES = 8
"""Number of line colors that the page defines: `--line-1` and so on."""
HEADROOM = 1.14
"""The top of an axis that starts at zero, as a multiple of the largest value."""

_LIMIT = f"stroke: {MUTED}; stroke-width: 1.2; stroke-dasharray: 4.8 3.6"
_JOINT = f"stroke: {MUTED}; stroke-width: 1.2; stroke-dasharray: 1.2 2.4"


def curves(frame: Curves, name: str) -> str:
    """Draw one plot. `name` makes its ids unique on the page."""
    lines = [_lines(series, frame.logarithmic) for series in frame.series]
    shown = [point for group in lines for points in group for point in points]
    plot = Plot(_across(frame, shown), _upright(frame, shown))
    inside = [_drawn(plot, group, f"var(--line-{index % SHADES + 1})") for index, group in enumerate(lines)]
    around = [
        plot.rows(plot.y.ticks(6 if frame.logarithmic else 5)),
        plot.columns(plot.x.ticks(6, integer=frame.axis == "step"), frame.axis),
    ]
    if frame.limit:
        words, value = frame.limit
        height = plot.place(plot.x.low, value)[1]
        inside.append(f'<path d="M{LEFT:g} {height:.2f}H{RIGHT:g}" style="{_LIMIT}"/>')
        around.append(text(f"{words} {tick(value)}", RIGHT, height - 3, "end"))
    if frame.joint:
        words, value = frame.joint
        left = plot.place(value, plot.y.high)[0]
        inside.append(f'<path d="M{left:.2f} {BOTTOM:g}V{TOP:g}" style="{_JOINT}"/>')
        around.append(text(words, left - 4, TOP + 10, "end"))
    return picture(frame.title, name, around, inside)


def _lines(series: Series, logarithmic: bool) -> list[list[Point]]:
    """The points of a series; those of a noisy one, then its mean. Both are computed on the displayed scale."""
    points = [(x, y) for x, y in thin(series) if y > 0 or not logarithmic]
    shape = series.positive().mapped(math.log) if logarithmic else series
    if not shape.noisy():
        return [points]
    return [points, [(x, math.exp(y) if logarithmic else y) for x, y in mean(shape)]]


def _drawn(plot: Plot, lines: list[list[Point]], shade: str) -> str:
    """A line, or a pale one and its mean on top; a line of one or two points has dots."""
    stroke = f"stroke: {shade}; stroke-linecap: round"
    pale = [plot.line(points, f"{stroke}; stroke-width: 0.8; opacity: 0.3") for points in lines[:-1]]
    drawn = plot.line(lines[-1], f"{stroke}; stroke-width: 1.8")
    dots = plot.dots(lines[-1], 2, f"fill: {shade}") if len(lines[-1]) < 3 else ""
    return "".join([*pale, drawn, dots])


def _across(frame: Curves, shown: list[Point]) -> Axis:
    values = [x for x, _ in shown] + ([frame.joint[1]] if frame.joint else [])
    return fitted(values, 0.01)


def _upright(frame: Curves, shown: list[Point]) -> Axis:
    values = [y for _, y in shown] + ([frame.limit[1]] if frame.limit else [])
    if frame.from_zero and not frame.logarithmic:
        return Axis(0.0, max([0.0, *values]) * HEADROOM or 1.0)
    return fitted(values, 0.05, logarithmic=frame.logarithmic)
