"""Draws PNG files: learning-rate test, memory profile and ablation."""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_RATIOS = (0.1, 0.2, 0.33, 0.5, 0.7, 0.8, 0.9, 1, 1.1, 1.25, 1.5, 2, 3, 5, 10, 20, 50)
NEXT = 0.085
"""Share of an axis that a tick label needs, with some space."""


def rates(
    lrs: Sequence[float], losses: Sequence[float], smooth: Sequence[float], suggested: float | None, path: Path
) -> None:
    """Draw the loss by learning rate, raw and smoothed, with the suggested rate.

    Raises:
        OSError: if the file cannot be written.
    """
    figure = _figure(8, 4.5)
    axes = figure.add_subplot()
    axes.plot(lrs, losses, color="0.75", linewidth=1, label="loss of each batch")
    axes.plot(lrs, smooth, color="C0", linewidth=2, label="smoothed")
    if suggested is not None:
        axes.axvline(suggested, color="C1", linestyle="--", label=f"steepest descent: {suggested:.2g}")
    low, high = min(smooth), max(smooth[: max(2, len(smooth) // 2)])
    axes.set_ylim(low - 0.1 * (high - low), high + (high - low))
    axes.set(xscale="log", xlabel="learning rate", ylabel="loss")
    axes.legend(loc="upper left")
    axes.grid(alpha=0.3)
    _save(figure, path)


def peaks(curves: Mapping[str, Sequence[tuple[int, int | None, int | None]]], ceiling: int, path: Path) -> None:
    """Draw peak memory by micro-batch: (samples, predicted, measured) in bytes per curve, and the limit.

    Raises:
        OSError: if the file cannot be written.
    """
    figure = _figure(8, 4.5)
    axes = figure.add_subplot()
    for number, (name, points) in enumerate(curves.items()):
        measured = [(count, peak / 2**20) for count, _, peak in points if peak]
        predicted = [(count, peak / 2**20) for count, peak, _ in points if peak]
        axes.plot(*_columns(measured), f"C{number}o-", label=f"{name}, measured")
        axes.plot(*_columns(predicted), f"C{number}x--", alpha=0.5, label=f"{name}, predicted")
    known = [peak for points in curves.values() for _, *both in points for peak in both if peak]
    if ceiling < 2 * max(known, default=ceiling):
        axes.axhline(ceiling / 2**20, color="C3", linestyle=":", label="available")
    sizes = sorted({count for points in curves.values() for count, _, _ in points})
    ticks = apart(sizes, 0.8 * sizes[0], 1.2 * sizes[-1])
    axes.set(xlabel="micro-batch", ylabel="peak memory in MiB", ylim=(0, None), xlim=(0.8 * sizes[0], 1.2 * sizes[-1]))
    axes.set_xscale("log")
    axes.set_xticks(ticks, [f"{count:g}" for count in ticks])
    axes.minorticks_off()
    axes.set_title(f"{ceiling / 2**20:,.0f} MiB available")
    axes.legend(loc="upper left")
    axes.grid(alpha=0.3)
    _save(figure, path)


def _columns(points: Sequence[tuple[int, float]]) -> tuple[list[int], list[float]]:
    return [count for count, _ in points], [value for _, value in points]


def ladder(rows: Sequence[tuple[str, float, float, float, str]], title: str, path: Path) -> None:
    """Draw speed ratios with their intervals, one row each, from top to bottom, with a line at 1.

    Args:
        rows: name, median, low, high, kind of the step; the kind sets the color.
        title: job and machine.
        path: the file.

    Raises:
        OSError: if the file cannot be written.
    """
    colours = {"added": "C0", "all": "C2", "without": "C7", "against": "C1"}
    figure = _figure(8, 1.6 + 0.32 * len(rows))
    axes = figure.add_subplot()
    for place, (_, median, low, high, kind) in enumerate(rows):
        colour = colours[kind]
        axes.barh(place, median - 1, left=1, height=0.6, color=colour, alpha=0.45)
        axes.plot([low, high], [place, place], color=colour, linewidth=2.5, solid_capstyle="butt")
    near, far = min([0.9, *(row[2] for row in rows)]), max([1.1, *(row[3] for row in rows)])
    for place, row in enumerate(rows):
        axes.text(1.01, place, f"{row[1]:.2f}x", va="center", fontsize=9, transform=axes.get_yaxis_transform())
    axes.axvline(1, color="0.3", linewidth=1)
    axes.set_yticks(range(len(rows)), [row[0] for row in rows], parse_math=False)
    axes.invert_yaxis()
    # Twice as fast and half as fast are equally far from 1.
    axes.set(xscale="log", xlim=(near / 1.05, far * 1.05))
    ticks = apart([tick for tick in _RATIOS if near / 1.05 <= tick <= far * 1.05], near, far)
    axes.set_xticks(ticks, [f"{tick:g}x" for tick in ticks])
    axes.minorticks_off()
    axes.set(xlabel="speedup; the line is the interquartile range")
    axes.set_title(title, fontsize=10, loc="left", parse_math=False)
    axes.grid(axis="x", alpha=0.3)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    _save(figure, path)


def apart(ticks: Sequence[float], low: float, high: float) -> list[float]:
    """The ticks of a logarithmic axis whose labels do not overlap; 1 has priority, then the nearest to it."""
    room, kept = NEXT * math.log(high / low), list[float]()
    for tick in sorted(ticks, key=lambda tick: abs(math.log(tick))):
        if all(abs(math.log(tick / other)) >= room for other in kept):
            kept.append(tick)
    return sorted(kept)


def _figure(width: float, height: float) -> Figure:
    # Matplotlib logs a message about its temporary cache if the user has no home, as in a container.
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _save(figure: Figure, path: Path) -> None:
    nothing: dict[str, Any] = {"Software": None}
    with warnings.catch_warnings():
        # Class names in a script that the font lacks are drawn as boxes; the CSV beside the picture has them.
        warnings.simplefilter("ignore")
        figure.savefig(path, dpi=120, metadata=nothing, bbox_inches="tight")
