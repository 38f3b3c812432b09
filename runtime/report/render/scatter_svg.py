"""Draws a scatter plot as inline SVG, in the look of the curves."""

from __future__ import annotations

from runtime.report.blocks import Dot, Scatter, Tone
from runtime.report.formatting import short, tick
from runtime.report.render.axes_svg import MUTED, Axis, Plot, fitted, picture

_SHADES = {Tone.PLAIN: "var(--line-1)", Tone.QUIET: MUTED, Tone.GOOD: "var(--line-3)"}
_SIZES = {Tone.PLAIN: 2.5, Tone.QUIET: 2.0, Tone.GOOD: 4.0}
_ROOM = 60
"""Characters of category names that fit below a plot."""


def scatter(plot: Scatter, name: str) -> str:
    """Draw one plot. `name` makes its ids unique on the page."""
    names = list(dict.fromkeys(dot.x for dot in plot.dots if isinstance(dot.x, str)))
    places = [(_place(dot, names), dot.y) for dot in plot.dots]
    shown = [*places, *plot.steps]
    x = fitted((x for x, _ in shown), 0.04, logarithmic=plot.log_x)
    if names:
        x = Axis(-0.5, len(names) - 0.5)
    axes = Plot(x, fitted((y for _, y in shown), 0.08, logarithmic=plot.log_y))
    around = [axes.rows(axes.y.ticks(6 if plot.log_y else 5)), _columns(axes, plot, names)]
    inside = [axes.line(plot.steps, "stroke: var(--line-3); stroke-width: 1.4", stairs=True)] if plot.steps else []
    for kind, tone in plot.kinds:
        points = [place for dot, place in zip(plot.dots, places, strict=True) if dot.kind == kind]
        fill = "none" if tone is Tone.QUIET else _SHADES[tone]
        inside.append(axes.dots(points, _SIZES[tone], f"fill: {fill}; stroke: {_SHADES[tone]}; stroke-width: 1.2"))
    return picture(plot.title, name, around, inside)


def _place(dot: Dot, names: list[str]) -> float:
    return float(names.index(dot.x)) if isinstance(dot.x, str) else dot.x


def _columns(axes: Plot, plot: Scatter, names: list[str]) -> str:
    if not names:
        ticks = axes.x.ticks(6, integer=plot.axis == "trial")
        return axes.columns(ticks, plot.axis, tick)
    size = max(4, _ROOM // len(names))
    return axes.columns(range(len(names)), plot.axis, lambda value: short(str(names[round(value)]), size))
