"""Draws a scatter plot as inline SVG, in the look of the curves."""

from __future__ import annotations

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator

from runtime.report.blocks import Dot, Scatter, Tone
from runtime.report.formatting import short, tick
from runtime.report.render.curves_svg import LINES, MUTED, PLOT_STYLE, STEPS, empty_plot, inline_svg, logarithmic

_COLOURS = {Tone.PLAIN: LINES[0], Tone.QUIET: MUTED, Tone.GOOD: LINES[2]}
_SIZES = {Tone.PLAIN: 5.0, Tone.QUIET: 4.0, Tone.GOOD: 8.0}
_ROOM = 60
"""Characters of category names that fit below a plot."""


def scatter(plot: Scatter, name: str) -> str:
    """Draw one plot. `name` makes its ids unique on the page."""
    with mpl.rc_context(PLOT_STYLE):  # type: ignore[arg-type]
        figure, axes = empty_plot()
        names = list(dict.fromkeys(dot.x for dot in plot.dots if isinstance(dot.x, str)))
        if plot.steps:
            xs, ys = zip(*plot.steps, strict=True)
            axes.plot(xs, ys, color=LINES[2], drawstyle="steps-post", linewidth=1.4)
        for order, (kind, tone) in enumerate(plot.kinds):
            dots = [dot for dot in plot.dots if dot.kind == kind]
            axes.plot(
                [_place(dot, names) for dot in dots],
                [dot.y for dot in dots],
                linestyle="",
                marker="o",
                markersize=_SIZES[tone],
                markerfacecolor=_COLOURS[tone] if tone is not Tone.QUIET else "none",
                markeredgecolor=_COLOURS[tone],
                markeredgewidth=1.2,
                zorder=3 + order,
            )
        _scale(axes, plot, names)
        return inline_svg(figure, name, plot.title)


def _place(dot: Dot, names: list[str]) -> float:
    return float(names.index(dot.x)) if isinstance(dot.x, str) else dot.x


def _scale(axes: Axes, plot: Scatter, names: list[str]) -> None:
    axes.margins(x=0.04, y=0.08)
    if plot.log_y:
        axes.set_yscale("log")
        logarithmic(axes.yaxis, axes.get_ylim())
    else:
        axes.yaxis.set_major_locator(MaxNLocator(5, steps=STEPS))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: tick(value)))
    if names:
        axes.set_xlim(-0.5, len(names) - 0.5)
        axes.xaxis.set_major_locator(FixedLocator(range(len(names))))
        size = max(4, _ROOM // len(names))
        words = [short(str(each), size) for each in names]
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: words[round(value)]))
    else:
        if plot.log_x:
            axes.set_xscale("log")
            logarithmic(axes.xaxis, axes.get_xlim())
        else:
            axes.xaxis.set_major_locator(MaxNLocator(6, steps=STEPS, integer=plot.axis == "trial"))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: tick(value)))
    axes.set_xlabel(plot.axis, loc="right", labelpad=1)
    axes.set_axisbelow(True)
