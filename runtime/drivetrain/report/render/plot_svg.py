"""Draws curves, scatter plots and confusion matrices as inline SVG: axes with readable ticks, grid, labels.

Colors and lines come from the page's style, so one picture serves light and dark mode. Matplotlib is not used, because a report
is written at the end of every run: importing it and drawing nine plots took more CPU time than everything between the last
step and the end of the process, and it is 57 MB with its dependencies.
"""

from __future__ import annotations

import base64
import math
import struct
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from drivetrain.report.blocks import Curves, Scatter
from drivetrain.report.confusion import Confusion
from drivetrain.report.formatting import format_tick, shorten
from drivetrain.report.log_series import Point, Series, compute_running_mean, thin_points
from drivetrain.report.render.elements import element

WIDTH, HEIGHT = 400, 220
LEFT, RIGHT, TOP, BOTTOM = 50.0, 390.0, 9.9, 183.7
"""Edges of the plot in the picture, in pixels."""
STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
"""Distances between ticks, times a power of ten."""
MAX_AXIS_VALUE = 1e280
"""The limits of an axis, and of a logarithmic one also the inverse: with a margin they must be numbers, too."""
FINE_TICK_DECADES = 2.5
"""Decades of a logarithmic axis up to which 2 and 5 are ticks, too."""
LINE_COLORS = 8
"""Number of line colors that the page defines: `.line-1` and so on."""
HEADROOM = 1.14
"""The top of an axis that starts at zero, as a multiple of the largest value."""

_CORRECT_COLOR, _WRONG_COLOR = (42, 120, 214), (226, 88, 46)
_MAX_OPACITY = 170
"""Opacity of a full cell, of 255; the count on it must be readable in both themes."""
_LETTER_WIDTH = 0.6
"""Width of a character relative to its height."""


@dataclass(frozen=True)
class Axis:
    """The values that an axis shows."""

    low: float
    high: float
    logarithmic: bool = False

    def locate(self, value: float) -> float:
        """Compute the place of a value, from 0 at the low end to 1 at the high end."""
        if self.logarithmic:
            low, high = math.log(self.low), math.log(self.high)
            return (math.log(value) - low) / (high - low)
        return (value - self.low) / (self.high - self.low)

    def choose_ticks(self, count: int, *, integer: bool = False) -> list[float]:
        """Choose readable values on the axis; at most `count` if they are evenly spaced."""
        if self.logarithmic:
            return _choose_decades(self.low, self.high, count) or choose_even_ticks(self.low, self.high, count)
        return choose_even_ticks(self.low, self.high, count, integer=integer)


def fit_axis(values: Iterable[float], margin: float, *, logarithmic: bool = False) -> Axis:
    """Return the axis that shows all values with a margin, which is a share of their range."""
    least = 1 / MAX_AXIS_VALUE if logarithmic else -MAX_AXIS_VALUE
    finite_values = [max(least, min(value, MAX_AXIS_VALUE)) for value in values if value > 0 or not logarithmic]
    low, high = (1.0, 10.0) if logarithmic else (0.0, 1.0)
    if finite_values:
        low, high = min(finite_values), max(finite_values)
    if logarithmic:
        low, high = math.log(low), math.log(high)
    room = margin * (high - low)
    if high - low <= 1e-9 * max(abs(low), abs(high)):
        room = 0.05 * max(abs(low), abs(high)) or 0.05
    low, high = low - room, high + room
    return Axis(math.exp(low), math.exp(high), True) if logarithmic else Axis(low, high)


def choose_even_ticks(low: float, high: float, count: int, *, integer: bool = False) -> list[float]:
    """Choose ticks at equal distances between two values."""
    power = 10.0 ** math.floor(math.log10((high - low) / count))
    distances = [power * step * scale for scale in (1, 10) for step in STEPS[:-1]]
    if integer:
        distances = [step for step in distances if step >= 1 and step == round(step)] or [1.0]
    for distance in distances:
        lowest, highest = math.ceil(low / distance - 1e-9), math.floor(high / distance + 1e-9)
        if highest - lowest < count:
            break
    # Rounded to the distance's own digits: 3 * 0.1 is not 0.3.
    digits = max(0, 2 - math.floor(math.log10(distance)))
    return [round(position * distance, digits) + 0.0 for position in range(lowest, highest + 1)]


def _choose_decades(low: float, high: float, count: int) -> list[float]:
    """Choose powers of ten, with 2 and 5 times each if they are few; returns none rather than a single tick."""
    factors = (1.0, 2.0, 5.0) if math.log10(high / low) < FINE_TICK_DECADES else (1.0,)
    lowest, highest = math.floor(math.log10(low)), math.ceil(math.log10(high))
    ticks = []
    for exponent in range(lowest, highest + 1, max(1, math.ceil((highest - lowest) / count))):
        ticks += [tick for factor in factors if low <= (tick := factor * 10.0**exponent) <= high]
    return ticks if len(ticks) > 1 else []


@dataclass(frozen=True)
class Plot:
    """Two axes; turns values into places in the picture."""

    x: Axis
    y: Axis

    def locate(self, x: float, y: float) -> tuple[float, float]:
        """Return pixels from the left and from the top."""
        return LEFT + self.x.locate(x) * (RIGHT - LEFT), BOTTOM - self.y.locate(y) * (BOTTOM - TOP)

    def draw_line(self, points: Sequence[Point], style: str) -> list[Markup]:
        """Draw a line through points; nothing without points."""
        places = [self.locate(x, y) for x, y in points]
        path = "".join(f"{'L' if index else 'M'}{x:.2f} {y:.2f}" for index, (x, y) in enumerate(places))
        return [element("path", d=path, class_=style)] if path else []

    def draw_dots(self, points: Sequence[Point], radius: float, style: str) -> list[Markup]:
        """Draw a circle at each point."""
        places = [self.locate(x, y) for x, y in points]
        return [element("circle", cx=x, cy=y, r=radius, class_=style) for x, y in places]

    def draw_axes(self, rows: Sequence[float], columns: Sequence[float], label: str) -> list[Markup]:
        """Draw grid lines and labels of the y axis, and the x axis with ticks, their labels, and its own at the right."""
        elements = []
        for value in rows:
            height = self.locate(self.x.low, value)[1]
            elements.append(element("path", d=f"M{LEFT:g} {height:.2f}H{RIGHT:g}", class_="grid"))
            elements.append(draw_text(format_tick(value), LEFT - 3.5, height + 4.37, "end"))
        elements.append(element("path", d=f"M{LEFT:g} {BOTTOM:g}H{RIGHT:g}", class_="grid"))
        for value in columns:
            position = self.locate(value, self.y.low)[0]
            elements.append(element("path", d=f"M{position:.2f} {BOTTOM:g}v3", class_="tick"))
            elements.append(draw_text(format_tick(value), position, BOTTOM + 15.24, "middle"))
        return [*elements, draw_text(label, RIGHT, BOTTOM + 27.74, "end")]


def draw_text(label: str, x: float, y: float, anchor: str) -> Markup:
    """Draw a label; `anchor` is the part of it that lies at x: start, middle, end."""
    return element("text", label, x=x, y=y, text_anchor=anchor)


def _draw_picture(title: str, around: Sequence[str], inside: Sequence[str], above: Sequence[str] = ()) -> Markup:
    """Draw a plot; elements `inside` are cut at its edges, as SVG cuts an inner picture."""
    width, height = RIGHT - LEFT, BOTTOM - TOP
    box = {"viewBox": f"{LEFT:g} {TOP:g} {width:g} {height:g}", "x": LEFT, "y": TOP, "width": width, "height": height}
    body = (*around, element("svg", *inside, **box), *above)
    return element("svg", *body, viewBox=f"0 0 {WIDTH} {HEIGHT}", role="img", aria_label=title)


def draw_scatter(plot: Scatter) -> Markup:
    """Draw dots, and a line where both values are the same."""
    axes = Plot(fit_axis((x for x, _ in plot.points), 0.04), fit_axis((y for _, y in plot.points), 0.08))
    ends = [max(axes.x.low, axes.y.low), min(axes.x.high, axes.y.high)]
    inside = axes.draw_line([(end, end) for end in ends], "limit") + axes.draw_dots(plot.points, 2.5, "dot line-1")
    return _draw_picture(plot.title, axes.draw_axes(axes.y.choose_ticks(5), axes.x.choose_ticks(6), plot.axis), inside)


def draw_curves(frame: Curves) -> Markup:
    """Draw one plot."""
    lines = [_list_lines(series, frame.logarithmic) for series in frame.series]
    all_points = [point for line_group in lines for points in line_group for point in points]
    across = fit_axis([*(x for x, _ in all_points), *(x for _, x in frame.marks)], 0.01)
    plot = Plot(across, _fit_y_axis(frame, all_points))
    inside: list[Markup] = []
    for index, line_group in enumerate(lines):
        inside += _draw_series(plot, line_group, index % LINE_COLORS + 1)
    columns = plot.x.choose_ticks(6, integer=frame.axis in ("step", "epoch"))
    around = plot.draw_axes(plot.y.choose_ticks(6 if frame.logarithmic else 5), columns, frame.axis)
    if frame.limit:
        label, value = frame.limit
        height = plot.locate(plot.x.low, value)[1]
        inside.append(element("path", d=f"M{LEFT:g} {height:.2f}H{RIGHT:g}", class_="limit"))
        around.append(draw_text(f"{label} {format_tick(value)}", RIGHT, height - 3, "end"))
    above: list[Markup] = []
    for row, (label, value) in enumerate(frame.marks):
        position = plot.locate(value, plot.y.high)[0]
        inside.append(element("path", d=f"M{position:.2f} {BOTTOM:g}V{TOP:g}", class_="mark"))
        # Drawn last and with an edge of the background's colour, so that it can be read above a curve.
        above.append(element("g", draw_text(label, position - 4, TOP + 10 + 12 * row, "end"), class_="over"))
    return _draw_picture(frame.title, around, inside, above)


def _list_lines(series: Series, logarithmic: bool) -> list[list[Point]]:
    """List the points of a series, followed by its running mean if it is noisy, both on the displayed scale."""
    points = [(x, y) for x, y in thin_points(series) if y > 0 or not logarithmic]
    shape = series.keep_positive().map_values(math.log) if logarithmic else series
    if not shape.is_noisy():
        return [points]
    return [points, [(x, math.exp(y) if logarithmic else y) for x, y in compute_running_mean(shape)]]


def _draw_series(plot: Plot, lines: list[list[Point]], color: int) -> list[Markup]:
    """Draw a line, or a pale one and its mean on top; a line of one or two points has dots."""
    elements: list[Markup] = []
    for points in lines[:-1]:
        elements += plot.draw_line(points, f"curve pale line-{color}")
    elements += plot.draw_line(lines[-1], f"curve line-{color}")
    if len(lines[-1]) < 3:
        elements += plot.draw_dots(lines[-1], 2, f"dot line-{color}")
    return elements


def _fit_y_axis(frame: Curves, points: list[Point]) -> Axis:
    values = [y for _, y in points] + ([frame.limit[1]] if frame.limit else [])
    if frame.from_zero and not frame.logarithmic:
        return Axis(0.0, max([0.0, *values]) * HEADROOM or 1.0)
    return fit_axis(values, 0.05, logarithmic=frame.logarithmic)


def draw_matrix(confusion: Confusion) -> tuple[Markup, int]:
    """Draw the matrix, and return its natural width in pixels, too. Up to 20 classes, every cell shows its count."""
    count = len(confusion.classes)
    cell = _choose_cell_size(count)
    size = min(11.0, max(8.0, cell))
    names = [shorten(name, 18) for name in confusion.classes]
    longest = max(map(len, names)) * size * _LETTER_WIDTH
    upright = longest > cell
    x_corner, top, side = 30 + longest, 26 + (longest if upright else size), cell * count
    square = {"x": x_corner, "y": top, "width": side, "height": side}
    width, height = x_corner + side + 2, top + side + 2
    picture = element(
        "svg",
        element("image", href=f"data:image/png;base64,{base64.b64encode(_paint_cells(confusion)).decode()}", **square),
        element("rect", class_="frame", **square),
        element("text", "truth", class_="axis", transform=f"translate(12 {top + side / 2:.1f}) rotate(-90)"),
        element("text", "prediction", class_="axis", x=x_corner + side / 2, y=12),
        *_draw_names(names, cell, size, (x_corner, top), upright),
        *_draw_counts(confusion, cell, (x_corner, top)),
        viewBox=f"0 0 {width:.1f} {height:.1f}",
        role="img",
        aria_label=f"confusion matrix of {count} classes",
    )
    return picture, round(width)


def _choose_cell_size(count: int) -> float:
    if count <= 10:
        return min(84.0, 360 / count)
    return 32.0 if count <= 20 else max(9.0, 640 / count) if count <= 100 else 900 / count


def _draw_names(names: list[str], cell: float, size: float, corner: tuple[float, float], upright: bool) -> list[Markup]:
    """Draw class labels; only every n-th if a row is smaller than a line of text."""
    elements = []
    x_corner, top = corner
    for i in range(0, len(names), max(1, math.ceil(size / cell - 0.2))):
        middle = (i + 0.5) * cell
        elements.append(element("text", names[i], class_="row", x=x_corner - 5, y=top + middle, font_size=size))
        transform = f"translate({x_corner + middle:.1f} {top - 6:.1f})" + (" rotate(-90)" if upright else "")
        style = "turned" if upright else "column"
        elements.append(element("text", names[i], class_=style, transform=transform, font_size=size))
    return elements


def _draw_counts(confusion: Confusion, cell: float, corner: tuple[float, float]) -> list[Markup]:
    if len(confusion.classes) > 20:
        return []
    elements = []
    for i, row in enumerate(confusion.matrix):
        for j, value in enumerate(row):
            if value:
                label = f"{value:,}"
                x, y = corner[0] + (j + 0.5) * cell, corner[1] + (i + 0.5) * cell
                size = min(13.0, 0.9 * cell / (_LETTER_WIDTH * max(2, len(label))))
                elements.append(element("text", label, class_="count", x=x, y=y, font_size=size))
    return elements


def _paint_cells(confusion: Confusion) -> bytes:
    """Draw the cells as a PNG, one pixel each: a hundred classes would need ten thousand rectangles.

    Pillow is not used, since a report must not depend on it.
    """
    lines = bytearray()
    for i, row in enumerate(confusion.matrix):
        total = sum(row) or 1
        lines.append(0)  # no filter
        for j, value in enumerate(row):
            # The square root and the minimum strength make rare mistakes visible.
            strength = 0.25 + 0.75 * math.sqrt(value / total) if value else 0.0
            lines += bytes((*(_CORRECT_COLOR if i == j else _WRONG_COLOR), round(_MAX_OPACITY * strength)))
    side = len(confusion.classes)
    header = struct.pack(">IIBBBBB", side, side, 8, 6, 0, 0, 0)  # 8 bits of red, green, blue and opacity
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(bytes(lines), 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )
