"""Pictures for people who look at files, as PNG: a confusion matrix, a learning-rate test, memory by micro-batch."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runtime.report.confusion import Confusion

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FEW = 30
"""Up to so many classes every cell shows its count and every class its name."""


def confusion(counts: Confusion, path: Path) -> None:
    """The matrix; colour is the share of the truth's samples, so rare classes show as well as frequent ones.

    Raises:
        OSError: if the file cannot be written.
    """
    size = len(counts.classes)
    side = min(16.0, 3.2 + 0.45 * size)
    figure = _figure(side + 0.8, side)
    axes = figure.add_subplot()
    shares = [[count / (sum(row) or 1) for count in row] for row in counts.matrix]
    image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1, interpolation="nearest")
    figure.colorbar(image, ax=axes, fraction=0.046, label="share of the class")
    axes.set(xlabel="prediction", ylabel="truth", title=f"{counts.hits:,} of {counts.total:,} right")
    if size <= FEW:
        axes.set_xticks(range(size), counts.classes, rotation=45, ha="right", parse_math=False)
        axes.set_yticks(range(size), counts.classes, parse_math=False)
        for i, row in enumerate(counts.matrix):
            for j, count in enumerate(row):
                if count:
                    axes.text(j, i, f"{count:,}", ha="center", va="center", fontsize=8,
                              color="white" if shares[i][j] > 0.5 else "black")  # fmt: skip
    _save(figure, path)


def rates(
    lrs: Sequence[float], losses: Sequence[float], smooth: Sequence[float], suggested: float | None, path: Path
) -> None:  # fmt: skip
    """Loss by learning rate, raw and smoothed, with the suggested rate.

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
    """Memory at the peak by micro-batch: (samples, predicted, measured) in bytes for each curve, and what may be used.

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
        axes.axhline(ceiling / 2**20, color="C3", linestyle=":", label="may be used")
    sizes = sorted({count for points in curves.values() for count, _, _ in points})
    axes.set(
        xlabel="samples at a time", ylabel="MiB at the peak", ylim=(0, None), xlim=(0.8 * sizes[0], 1.2 * sizes[-1])
    )
    axes.set_xscale("log")
    axes.set_xticks(sizes, [str(count) for count in sizes])
    axes.minorticks_off()
    axes.set_title(f"{ceiling / 2**20:,.0f} MiB may be used")
    axes.legend(loc="upper left")
    axes.grid(alpha=0.3)
    _save(figure, path)


def _columns(points: Sequence[tuple[int, float]]) -> tuple[list[int], list[float]]:
    return [count for count, _ in points], [value for _, value in points]


def _figure(width: float, height: float) -> Figure:
    # Matplotlib tells in the log that a user without a home, as in a container, gets a temporary cache.
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _save(figure: Figure, path: Path) -> None:
    nothing: dict[str, Any] = {"Software": None}
    with warnings.catch_warnings():
        # A class name in letters that the font lacks is drawn as boxes; the CSV beside has it.
        warnings.simplefilter("ignore")
        figure.savefig(path, dpi=120, metadata=nothing, bbox_inches="tight")
