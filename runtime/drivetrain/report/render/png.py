"""Draws PNG files: learning-rate test, memory profile and ablation."""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SPEEDUP_TICKS = (0.1, 0.2, 0.33, 0.5, 0.7, 0.8, 0.9, 1, 1.1, 1.25, 1.5, 2, 3, 5, 10, 20, 50)
_MIN_TICK_DISTANCE = 0.085
"""Share of an axis that a tick label needs, with some space."""


class MemoryPoint(NamedTuple):
    """Peak memory with a micro-batch of so many samples, in bytes; None where it is not known."""

    samples: int
    predicted: int | None
    measured: int | None


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
    figure = _figure(8, 4.5)
    axes = figure.add_subplot()
    axes.plot(lrs, losses, color="0.75", linewidth=1, label="loss of each batch")
    axes.plot(lrs, smooth, color="C0", linewidth=2, label="smoothed")
    if suggested is not None:
        axes.axvline(suggested, color="C1", linestyle="--", label=f"steepest descent: {suggested:.2g}")
    # The loss explodes at the end, so the axis ends at twice the height of the first half.
    low, high = min(smooth), max(smooth[: max(2, len(smooth) // 2)])
    axes.set_ylim(low - 0.1 * (high - low), high + (high - low))
    axes.set(xscale="log", xlabel="learning rate", ylabel="loss")
    axes.legend(loc="upper left")
    axes.grid(alpha=0.3)
    _save(figure, path)


def draw_memory_profile(curves: Mapping[str, Sequence[MemoryPoint]], ceiling: int, path: Path) -> None:
    """Draw peak memory by micro-batch, and the limit in bytes.

    Raises:
        OSError: if the file cannot be written.
    """
    figure = _figure(8, 4.5)
    axes = figure.add_subplot()
    for number, (name, points) in enumerate(curves.items()):
        measured = [(point.samples, point.measured / 2**20) for point in points if point.measured]
        predicted = [(point.samples, point.predicted / 2**20) for point in points if point.predicted]
        axes.plot(*_columns(measured), f"C{number}o-", label=f"{name}, measured")
        axes.plot(*_columns(predicted), f"C{number}x--", alpha=0.5, label=f"{name}, predicted")
    all_points = [point for points in curves.values() for point in points]
    peaks = [peak for point in all_points for peak in (point.predicted, point.measured) if peak]
    # A far limit would flatten the curves; the title names it anyway.
    if ceiling < 2 * max(peaks, default=ceiling):
        axes.axhline(ceiling / 2**20, color="C3", linestyle=":", label="available")
    sizes = sorted({point.samples for point in all_points})
    ticks = drop_overlapping(sizes, 0.8 * sizes[0], 1.2 * sizes[-1])
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


def draw_ablation(bars: Sequence[Bar], title: str, path: Path) -> None:
    """Draw speed ratios with their intervals, one row each, from top to bottom, with a line at 1.

    Args:
        bars: the steps.
        title: job and machine.
        path: the file.

    Raises:
        OSError: if the file cannot be written.
    """
    colors = {"added": "C0", "all": "C2", "without": "C7", "against": "C1"}
    figure = _figure(8, 1.6 + 0.32 * len(bars))
    axes = figure.add_subplot()
    for row, bar in enumerate(bars):
        color = colors[bar.kind]
        axes.barh(row, bar.median - 1, left=1, height=0.6, color=color, alpha=0.45)
        axes.plot([bar.low, bar.high], [row, row], color=color, linewidth=2.5, solid_capstyle="butt")
    lowest = min([0.9, *(bar.low for bar in bars)])
    highest = max([1.1, *(bar.high for bar in bars)])
    for row, bar in enumerate(bars):
        axes.text(1.01, row, f"{bar.median:.2f}x", va="center", fontsize=9, transform=axes.get_yaxis_transform())
    axes.axvline(1, color="0.3", linewidth=1)
    axes.set_yticks(range(len(bars)), [bar.name for bar in bars], parse_math=False)
    axes.invert_yaxis()
    # Twice as fast and half as fast are equally far from 1.
    axes.set(xscale="log", xlim=(lowest / 1.05, highest * 1.05))
    visible_ticks = [tick for tick in _SPEEDUP_TICKS if lowest / 1.05 <= tick <= highest * 1.05]
    ticks = drop_overlapping(visible_ticks, lowest, highest)
    axes.set_xticks(ticks, [f"{tick:g}x" for tick in ticks])
    axes.minorticks_off()
    axes.set(xlabel="speedup; the line is the interquartile range")
    axes.set_title(title, fontsize=10, loc="left", parse_math=False)
    axes.grid(axis="x", alpha=0.3)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    _save(figure, path)


def drop_overlapping(ticks: Sequence[float], low: float, high: float) -> list[float]:
    """The ticks of a logarithmic axis whose labels do not overlap; 1 has priority, then the nearest to it."""
    min_distance = _MIN_TICK_DISTANCE * math.log(high / low)
    labelled = list[float]()
    for tick in sorted(ticks, key=lambda tick: abs(math.log(tick))):
        if all(abs(math.log(tick / other)) >= min_distance for other in labelled):
            labelled.append(tick)
    return sorted(labelled)


def _figure(width: float, height: float) -> Figure:
    # Matplotlib logs a message about its temporary cache if the user has no home, as in a container.
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _save(figure: Figure, path: Path) -> None:
    # Otherwise the file would hold matplotlib's version, and differ with it for the same data.
    no_version: dict[str, Any] = {"Software": None}
    with warnings.catch_warnings():
        # Class names in a script that the font lacks are drawn as boxes; the CSV beside the picture has them.
        warnings.simplefilter("ignore")
        figure.savefig(path, dpi=120, metadata=no_version, bbox_inches="tight")
