"""Writes SVG files: learning-rate test, memory profile and ablation."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

from drivetrain.report.render.page import COLORS
from drivetrain.report.render.plot_svg import LEFT, TOP, WIDTH, Axis, Plot, draw_picture, draw_text, fit_axis

_SPEEDUP_TICKS = (0.1, 0.2, 0.33, 0.5, 0.7, 0.8, 0.9, 1, 1.1, 1.25, 1.5, 2, 3, 5, 10, 20, 50)
_MIN_TICK_DISTANCE = 0.11
"""Share of an axis that a tick label needs, with some space."""
_STYLE = f"{COLORS} svg {{ background: var(--card); font-family: system-ui, 'DejaVu Sans', sans-serif; }}"
_KIND_COLORS = {"added": "var(--line-1)", "all": "var(--line-3)", "without": "var(--muted)", "against": "var(--line-2)"}
_ROW_HEIGHT, _NAME_WIDTH = 18.0, 170.0


class Bar(NamedTuple):
    """The speed ratio of one step of an ablation: the median, and the ends of its interval."""

    name: str
    median: float
    low: float
    high: float
    kind: str
    """What the step does, which sets the color: added, all, without or against."""


def draw_lr_range(
    lrs: Sequence[float], losses: Sequence[float], smooth: Sequence[float], suggested: float | None, path: Path
) -> None:
    """Draw the loss by learning rate, raw and smoothed, with the suggested rate.

    Raises:
        OSError: if the file cannot be written.
    """
    # The loss explodes at the end, so the axis ends at twice the height of the first half.
    low, high = min(smooth), max(smooth[: max(2, len(smooth) // 2)])
    room = high - low or abs(high) or 1.0
    plot = Plot(fit_axis(lrs, 0.01, logarithmic=True), Axis(low - 0.1 * room, high + room))
    inside = [
        plot.draw_line(list(zip(lrs, losses, strict=True)), "stroke: var(--muted); stroke-width: 0.8; opacity: 0.5"),
        plot.draw_line(list(zip(lrs, smooth, strict=True)), "stroke: var(--line-1); stroke-width: 1.8"),
    ]
    legend = [("loss of each batch", "var(--muted)"), ("smoothed", "var(--line-1)")]
    if suggested is not None:
        inside.append(
            _draw_limit(plot.locate(suggested, plot.y.low), plot.locate(suggested, plot.y.high), "var(--line-2)")
        )
        legend.append((f"steepest descent: {suggested:.2g}", "var(--line-2)"))
    axes = [plot.draw_rows(plot.y.choose_ticks(5)), plot.draw_columns(plot.x.choose_ticks(6), "learning rate")]
    around = [*axes, *_draw_legend(legend)]
    _write(draw_picture("loss by learning rate", "lr", around, inside), path)


def draw_memory_profile(
    curves: Mapping[str, Sequence[tuple[int, int | None, int | None]]], ceiling: int, path: Path
) -> None:
    """Draw peak memory by micro-batch, and the limit in bytes; raises OSError if the file cannot be written.

    Args:
        curves: points by the name of a curve: samples, predicted and measured peak; None where it is not known.
    """
    points = [point for group in curves.values() for point in group]
    peaks = [peak / 2**20 for _, *both in points for peak in both if peak]
    limit = ceiling / 2**20
    # A far limit would flatten the curves; the legend names it anyway.
    is_near = limit < 2 * max(peaks, default=limit)
    sizes = sorted({samples for samples, _, _ in points})
    across = Axis(0.8 * sizes[0], 1.2 * sizes[-1], logarithmic=True)
    plot = Plot(across, Axis(0.0, 1.3 * max([*peaks, *([limit] if is_near else [])], default=1.0)))
    inside, legend = [], []
    for number, (name, group) in enumerate(curves.items(), 1):
        color = f"var(--line-{number})"
        predicted = [(float(samples), peak / 2**20) for samples, peak, _ in group if peak]
        measured = [(float(samples), peak / 2**20) for samples, _, peak in group if peak]
        inside += [
            plot.draw_line(predicted, f"stroke: {color}; stroke-width: 1.2; stroke-dasharray: 4 3; opacity: 0.6"),
            plot.draw_line(measured, f"stroke: {color}; stroke-width: 1.6"),
            plot.dots(measured, 2.5, f"fill: {color}"),
        ]
        legend.append((f"{name}: measured, and dashed predicted", color))
    legend.append((f"{limit:,.0f} MiB available", "var(--bad)"))
    if is_near:
        inside.append(_draw_limit(plot.locate(across.low, limit), plot.locate(across.high, limit), "var(--bad)"))
    ticks = drop_overlapping(sizes, across.low, across.high)
    axes = [plot.draw_rows(plot.y.choose_ticks(5)), plot.draw_columns(ticks, "micro-batch; peak memory in MiB")]
    around = [*axes, *_draw_legend(legend)]
    _write(draw_picture("peak memory by micro-batch", "memory", around, inside), path)


def draw_ablation(bars: Sequence[Bar], title: str, path: Path) -> None:
    """Draw speed ratios with their intervals, one row each, from top to bottom, with a line at 1.

    Args:
        title: job and machine.

    Raises:
        OSError: if the file cannot be written.
    """
    lowest = min([0.9, *(bar.low for bar in bars)]) / 1.05
    highest = max([1.1, *(bar.high for bar in bars)]) * 1.05
    # Twice as fast and half as fast are equally far from 1.
    axis = Axis(lowest, highest, logarithmic=True)
    x_left, x_right, top = _NAME_WIDTH, WIDTH + 60.0, 30.0
    bottom = top + _ROW_HEIGHT * len(bars)

    def locate(ratio: float) -> float:
        return x_left + axis.locate(ratio) * (x_right - x_left)

    parts = [draw_text(title, 4, 16, "start")]
    for ratio in drop_overlapping([tick for tick in _SPEEDUP_TICKS if lowest <= tick <= highest], lowest, highest):
        parts.append(_draw_line((locate(ratio), top), (locate(ratio), bottom), "var(--grid)", 0.8))
        parts.append(draw_text(f"{ratio:g}x", locate(ratio), bottom + 14, "middle"))
    for row, bar in enumerate(bars):
        color, middle = _KIND_COLORS[bar.kind], top + (row + 0.5) * _ROW_HEIGHT
        start, end = sorted((locate(1), locate(bar.median)))
        parts += [
            f'<rect x="{start:.1f}" y="{middle - 5:.1f}" width="{end - start:.1f}" height="10" style="fill: {color}; opacity: 0.45"/>',
            _draw_line((locate(bar.low), middle), (locate(bar.high), middle), color, 2.5),
            draw_text(bar.name, x_left - 8, middle + 4, "end"),
            draw_text(f"{bar.median:.2f}x", x_right + 6, middle + 4, "start"),
        ]
    parts.append(_draw_line((locate(1), top), (locate(1), bottom), "var(--muted)", 1.0))
    parts.append(draw_text("speedup; the line is the interquartile range", x_right, bottom + 28, "end"))
    view = f"0 0 {x_right + 50:g} {bottom + 36:g}"
    _write(f'<svg viewBox="{view}" role="img" aria-label="{escape(title)}">{"".join(parts)}</svg>', path)


def drop_overlapping(ticks: Sequence[float], low: float, high: float) -> list[float]:
    """The ticks of a logarithmic axis whose labels do not overlap; 1 has priority, then the nearest to it."""
    min_distance = _MIN_TICK_DISTANCE * math.log(high / low)
    labelled = list[float]()
    for value in sorted(ticks, key=lambda value: abs(math.log(value))):
        if all(abs(math.log(value / other)) >= min_distance for other in labelled):
            labelled.append(value)
    return sorted(labelled)


def _draw_line(start: tuple[float, float], end: tuple[float, float], color: str, width: float) -> str:
    path = f"M{start[0]:.1f} {start[1]:.1f}L{end[0]:.1f} {end[1]:.1f}"
    return f'<path d="{path}" style="stroke: {color}; stroke-width: {width:g}"/>'


def _draw_limit(start: tuple[float, float], end: tuple[float, float], color: str) -> str:
    return f'<g style="stroke-dasharray: 5 3">{_draw_line(start, end, color, 1.4)}</g>'


def _draw_legend(entries: Iterable[tuple[str, str]]) -> list[str]:
    """Names beside short lines of their colors, at the top left of the plot."""
    parts = []
    for row, (name, color) in enumerate(entries):
        height = TOP + 8 + 13 * row
        parts.append(_draw_line((LEFT + 6, height), (LEFT + 20, height), color, 2.5))
        parts.append(draw_text(name, LEFT + 25, height + 4, "start"))
    return parts


def _write(drawing: str, path: Path) -> None:
    """Write a picture that needs no page around it: with its name space, size and colors."""
    opening = '<svg xmlns="http://www.w3.org/2000/svg" width="900" '
    body = drawing.replace("<svg ", opening, 1).replace(">", f"><style>{_STYLE}</style>", 1)
    path.write_text(body, encoding="utf-8")
