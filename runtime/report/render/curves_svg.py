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
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from runtime.report.blocks import Curves
from runtime.report.formatting import tick
from runtime.report.log_series import Series, mean, thin

SHADES = 8
"""Number of line colors that the page defines: `--line-1` and so on."""

_WIDTH, _HEIGHT = 400, 220
_STEPS = (1, 2, 2.5, 5, 10)
_MUTED, _GRID = "#010102", "#010103"
_LINES = tuple(f"#0102{i:02x}" for i in range(1, SHADES + 1))
_VARIABLES = {_MUTED: "--muted", _GRID: "--grid"} | {colour: f"--line-{i}" for i, colour in enumerate(_LINES, 1)}
_STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "drivetrain",
    "font.size": 11.5,
    "axes.edgecolor": _GRID,
    "axes.labelcolor": _MUTED,
    "xtick.color": _MUTED,
    "ytick.color": _MUTED,
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
    with mpl.rc_context(_STYLE):  # type: ignore[arg-type]
        figure = Figure(figsize=(_WIDTH / 72, _HEIGHT / 72), facecolor="none")
        FigureCanvasSVG(figure)
        axes = figure.add_axes((0.125, 0.165, 0.85, 0.79), facecolor="none")
        for index, series in enumerate(frame.series):
            _line(axes, series, _LINES[index % SHADES], frame.logarithmic)
        if frame.limit:
            text, value = frame.limit
            axes.axhline(value, color=_MUTED, linewidth=1.2, linestyle=(0, (4, 3)))
            axes.annotate(
                f"{text} {tick(value)}",
                (1, value),
                (0, 3),
                xycoords=("axes fraction", "data"),
                textcoords="offset points",
                ha="right",
                va="bottom",
                color=_MUTED,
            )
        if frame.joint:
            text, value = frame.joint
            axes.axvline(value, color=_MUTED, linewidth=1.2, linestyle=(0, (1, 2)))
            axes.annotate(
                f"{text} ",
                (value, 1),
                xycoords=("data", "axes fraction"),
                ha="right",
                va="top",
                color=_MUTED,
            )
        _scale(axes, frame)
        return _svg(figure, name, frame.title)


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
        low, high = axes.get_ylim()
        few = math.log10(high / low) < 2.5
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if few else (1.0,), numticks=6))
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.tick_params(which="minor", length=0)
    else:
        axes.yaxis.set_major_locator(MaxNLocator(5, steps=_STEPS))
        if frame.from_zero:
            values = [max(series.ys) for series in frame.series if series]
            axes.set_ylim(0, max([*values, frame.limit[1] if frame.limit else 0.0]) * 1.14 or 1.0)
    axes.xaxis.set_major_locator(MaxNLocator(6, steps=_STEPS, integer=frame.axis == "step"))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: tick(value)))
    axes.set_xlabel(frame.axis, loc="right", labelpad=1)
    axes.set_axisbelow(True)


def _svg(figure: Figure, name: str, title: str) -> str:
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
