"""Draws a confusion matrix as inline SVG in the page's colors, for two classes or a thousand."""

from __future__ import annotations

import base64
import io
import math
from html import escape

from runtime.report.confusion import Confusion
from runtime.report.formatting import short, tick

_RIGHT, _WRONG = (42, 120, 214), (226, 88, 46)
_STRONGEST = 170
"""Opacity of a full cell, of 255; the count on it must be readable in both themes."""
_LETTER = 0.6
"""Width of a character relative to its height."""


def matrix(confusion: Confusion) -> tuple[str, int]:
    """The picture and its natural width in pixels. Up to 20 classes, every cell shows its count."""
    count = len(confusion.classes)
    cell = _cell(count)
    size = min(11.0, max(8.0, cell))
    names = [short(text, 18) for text in confusion.classes]
    longest = max(map(len, names)) * size * _LETTER
    upright = longest > cell
    left = 30 + longest
    top = 26 + (longest if upright else size)
    side = cell * count
    parts = [
        _image(confusion, left, top, side),
        f'<rect x="{left:.1f}" y="{top:.1f}" width="{side:.1f}" height="{side:.1f}" class="frame"/>',
        f'<text class="axis" transform="translate(12 {top + side / 2:.1f}) rotate(-90)">truth</text>',
        f'<text class="axis" x="{left + side / 2:.1f}" y="12">prediction</text>',
        *_names(names, cell, size, (left, top), upright),
        *_counts(confusion, cell, (left, top)),
    ]
    width, height = left + side + 2, top + side + 2
    label = f"confusion matrix of {count} classes"
    body = "\n".join(parts)
    return f'<svg viewBox="0 0 {width:.1f} {height:.1f}" role="img" aria-label="{label}">{body}</svg>', round(width)


def _cell(count: int) -> float:
    if count <= 10:
        return min(84.0, 360 / count)
    return 32.0 if count <= 20 else max(9.0, 640 / count) if count <= 100 else 900 / count


def _names(names: list[str], cell: float, size: float, corner: tuple[float, float], upright: bool) -> list[str]:
    """Class labels; only every n-th if a row is smaller than a line of text."""
    found = []
    left, top = corner
    for i in range(0, len(names), max(1, math.ceil(size / cell - 0.2))):
        text, middle = escape(names[i]), (i + 0.5) * cell
        style = f'font-size="{size:.1f}"'
        found.append(f'<text class="row" x="{left - 5:.1f}" y="{top + middle:.1f}" {style}>{text}</text>')
        place = f"translate({left + middle:.1f} {top - 6:.1f})" + (" rotate(-90)" if upright else "")
        found.append(f'<text class="{"turned" if upright else "column"}" transform="{place}" {style}>{text}</text>')
    return found


def _counts(confusion: Confusion, cell: float, corner: tuple[float, float]) -> list[str]:
    if len(confusion.classes) > 20:
        return []
    found = []
    for i, row in enumerate(confusion.matrix):
        for j, value in enumerate(row):
            if value:
                text = tick(value)
                x, y = corner[0] + (j + 0.5) * cell, corner[1] + (i + 0.5) * cell
                size = min(13.0, 0.9 * cell / (_LETTER * max(2, len(text))))
                found.append(f'<text class="count" x="{x:.1f}" y="{y:.1f}" font-size="{size:.1f}">{text}</text>')
    return found


def _image(confusion: Confusion, left: float, top: float, side: float) -> str:
    """The cells as a small PNG, one pixel each; a hundred classes would need ten thousand rectangles."""
    from PIL import Image

    pixels = bytearray()
    for i, row in enumerate(confusion.matrix):
        total = sum(row) or 1
        for j, value in enumerate(row):
            # The square root and the minimum strength make rare mistakes visible.
            strength = 0.25 + 0.75 * math.sqrt(value / total) if value else 0.0
            pixels += bytes((*(_RIGHT if i == j else _WRONG), round(_STRONGEST * strength)))
    file = io.BytesIO()
    Image.frombytes("RGBA", (len(confusion.classes),) * 2, bytes(pixels)).save(file, "png", compress_level=9)
    data = base64.b64encode(file.getvalue()).decode()
    place = f'x="{left:.1f}" y="{top:.1f}" width="{side:.1f}" height="{side:.1f}"'
    return f'<image {place} href="data:image/png;base64,{data}"/>'
