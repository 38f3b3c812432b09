"""Draws curves as inline SVG that takes colors and font from the page.

Matplotlib draws with placeholder colors; each is replaced by a CSS variable, so one picture serves light and dark mode.
"""

from __future__ import annotations

import io
import math
import re
from html import escape

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from runtime.report.blocks import Curves
from runtime.report.formatting import tick
from runtime.report.log_series import Series, mean, thin

SHADES = 8
"""Number of line colors that the page defines: `--line-1` and so on."""

_WIDTH, _HEIGHT = 400, 220
STEPS = (1, 2, 2.5, 5, 10)
MUTED, _GRID = "#010102", "#010103"
LINES = tuple(f"#0102{i:02x}" for i in range(1, SHADES + 1))
_VARIABLES = {MUTED: "--muted", _GRID: "--grid"} | {colour: f"--line-{i}" for i, colour in enumerate(LINES, 1)}
PLOT_STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "drivetrain",
    "font.size": 11.5,
    "axes.edgecolor": _GRID,
    "axes.labelcolor": MUTED,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "grid.color": _GRID,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "xtick.major.size": 3,
    "ytick.major.size": 0,
    "lines.linewidth": 1.8,
    "lines.solid_capstyle": "round",
}


def curves(frame: Curves, name: str) -> str:
    """Draw one plot. `name` makes its ids unique on the page."""
    with mpl.rc_context(PLOT_STYLE):  # type: ignore[arg-type]
        figure, axes = empty_plot()
        for index, series in enumerate(frame.series):
            _line(axes, series, LINES[index % SHADES], frame.logarithmic)
        if frame.limit:
            text, value = frame.limit
            axes.axhline(value, color=MUTED, linewidth=1.2, linestyle=(0, (4, 3)))
            axes.annotate(
                f"{text} {tick(value)}",
                (1, value),
                (0, 3),
                xycoords=("axes fraction", "data"),
                textcoords="offset points",
                ha="right",
                va="bottom",
                color=MUTED,
            )
        if frame.joint:
            text, value = frame.joint
            axes.axvline(value, color=MUTED, linewidth=1.2, linestyle=(0, (1, 2)))
            axes.annotate(
                f"{text} ",
                (value, 1),
                xycoords=("data", "axes fraction"),
                ha="right",
                va="top",
                color=MUTED,
            )
        _scale(axes, frame)
        return inline_svg(figure, name, frame.title)


def empty_plot() -> tuple[Figure, Axes]:
    """A figure of the size of all plots, and its axes; to be called under `PLOT_STYLE`."""
    figure = Figure(figsize=(_WIDTH / 72, _HEIGHT / 72), facecolor="none")
    FigureCanvasSVG(figure)
    return figure, figure.add_axes((0.125, 0.165, 0.85, 0.79), facecolor="none")


def _line(axes: Axes, series: Series, colour: str, logarithmic: bool) -> None:
    """Draw a series; a noisy one is pale, with its mean on top. Noise and mean are computed on the displayed scale."""
    points = thin(series)
    xs, ys = [x for x, _ in points], [y for _, y in points]
    shape = series.mapped(math.log) if logarithmic else series
    if shape.noisy():
        axes.plot(xs, ys, color=colour, linewidth=0.8, alpha=0.3)
        smooth = mean(shape)
        xs, ys = [x for x, _ in smooth], [math.exp(y) if logarithmic else y for _, y in smooth]
    axes.plot(xs, ys, color=colour, marker="o" if len(xs) < 3 else "", markersize=4)


def _scale(axes: Axes, frame: Curves) -> None:
    axes.margins(x=0.01)
    if frame.logarithmic:
        axes.set_yscale("log")
        logarithmic(axes.yaxis, axes.get_ylim())
    else:
        axes.yaxis.set_major_locator(MaxNLocator(5, steps=STEPS))
        if frame.from_zero:
            values = [max(series.ys) for series in frame.series if series]
            axes.set_ylim(0, max([*values, frame.limit[1] if frame.limit else 0.0]) * 1.14 or 1.0)
    axes.xaxis.set_major_locator(MaxNLocator(6, steps=STEPS, integer=frame.axis == "step"))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: tick(value)))
    axes.set_xlabel(frame.axis, loc="right", labelpad=1)
    axes.set_axisbelow(True)


def logarithmic(axis: Axis, limits: tuple[float, float]) -> None:
    """Put a few readable ticks on a logarithmic axis."""
    few = math.log10(limits[1] / limits[0]) < 2.5
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if few else (1.0,), numticks=6))
    axis.set_minor_formatter(NullFormatter())
    axis.set_tick_params(which="minor", length=0)


def inline_svg(figure: Figure, name: str, title: str) -> str:
    """The figure as inline SVG: no prologue, no fixed size, no style of its own, ids only where they are referenced."""
    stream = io.StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    figure.savefig(stream, format="svg", metadata=nothing)
    text = stream.getvalue()
    body = text[text.index("</style>") : text.rindex("</svg>")]
    body = body.removeprefix("</style>").lstrip().removeprefix("</defs>")
    body = re.sub(r"<!--.*?-->", "", body, flags=re.DOTALL)
    body = re.sub(r'<g id="[^"]*"', "<g", body).replace("xlink:href", "href")
    body = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-", body)
    body = re.sub(r"<[^>]*>", lambda tag: re.sub(r"\d+\.\d{3,}", lambda n: f"{float(n[0]):.2f}", tag[0]), body)
    body = re.sub(r"font: ([\d.]+)px [^;\"]*", r"font-size: \1px", body)
    body = re.sub(r"; font-family: [^;\"]*|transform=\"rotate\(-0[^\"]*\"", "", body)
    for colour, variable in _VARIABLES.items():
        body = body.replace(colour, f"var({variable})")
    body = re.sub(r"\s*\n\s*", "\n", body)
    return f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(title)}">{body}</svg>'
