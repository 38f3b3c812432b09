"""A sparkline: a growing series of numbers drawn in one line of text, at constant cost."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

MAX_POINTS = 128
"""Largest number of points; beyond it, neighbors are merged."""
BAR_CHARACTERS = "▁▂▃▄▅▆▇█"


class Sparkline:
    """Means of neighboring values; `last` is the exact last value."""

    def __init__(self) -> None:
        self.means: list[float] = []
        self.stride, self.sum, self.count = 1, 0.0, 0
        self.first: float | None = None
        self.last: float | None = None

    def add(self, value: float) -> None:
        """Add a value; non-finite ones are not drawn."""
        self.last = value
        if not math.isfinite(value):
            return
        if self.first is None:
            self.first = value
        self.sum, self.count = self.sum + value, self.count + 1
        if self.count == self.stride:
            self.means.append(self.sum / self.count)
            self.sum, self.count = 0.0, 0
        if len(self.means) == MAX_POINTS:
            pairs = zip(self.means[::2], self.means[1::2], strict=True)
            self.means = [(a + b) / 2 for a, b in pairs]
            self.stride *= 2

    def draw(self, width: int) -> str:
        """Draw at most `width` bars from the lowest to the highest mean; logarithmic if these differ a hundredfold."""
        values = self.means
        if values and min(values) > 0 and max(values) > 100 * min(values):
            values = [math.log(value) for value in values]
        return draw_bars(values, width)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(self.draw(options.max_width), style="cyan")


def draw_bars(values: Sequence[float], width: int) -> str:
    """Draw at most `width` bars, each the mean of neighboring values; empty without values."""
    if not values:
        return ""
    low, high, count = min(values), max(values), len(values)
    width = min(width, count)
    spans = [values[i * count // width : (i + 1) * count // width] for i in range(width)]
    heights = [(sum(span) / len(span) - low) / (high - low or 1.0) for span in spans]
    return "".join(BAR_CHARACTERS[min(7, int(8 * height))] for height in heights)
