"""Draws a confusion matrix as PNG, for TensorBoard and for `drivetrain evaluate`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from PIL import Image, ImageDraw, ImageFont

from drivetrain.tracking.tensorboard import PngImage, Value

MAX_NAMED_CLASSES = 20
"""Up to this many classes, names and counts are shown."""


def draw_images(counts: Mapping[str, Any]) -> dict[str, Value]:
    """A picture for each head with exclusive classes, by tag."""
    return {
        f"confusion/{head}" if head else "confusion": partial(draw_matrix, one["classes"], one["matrix"])
        for head, one in counts.items()
        if "matrix" in one
    }


def draw_matrix(classes: Sequence[str], matrix: Sequence[Sequence[int]]) -> PngImage:
    """Draw a confusion matrix with true classes by row; the color is the share among the row's samples."""
    count = len(classes)
    cell = max(24, 340 // count) if count <= MAX_NAMED_CLASSES else max(2, 640 // count)
    font = ImageFont.load_default(max(10, min(16, cell // 2)))
    names = [name[:14] for name in classes] if count <= MAX_NAMED_CLASSES else [""]
    margin_left = round(max(font.getlength(name) for name in names)) + 12
    sheet = Image.new("RGB", (margin_left + cell * count + 8, cell * count + 32), "white")
    draw = ImageDraw.Draw(sheet)
    draw.text((6, 4), "rows: true class, columns: predicted class", fill="black", font=font)
    for i, row in enumerate(matrix):
        middle = 26 + i * cell + cell // 2
        if count <= MAX_NAMED_CLASSES:
            draw.text((6, middle), names[i], fill="black", font=font, anchor="lm")
        for j, value in enumerate(row):
            # The square root makes rare mistakes visible.
            strength = math.sqrt(value / (sum(row) or 1))
            full = (31, 119, 180) if i == j else (214, 70, 40)
            box = (margin_left + j * cell, 26 + i * cell, margin_left + (j + 1) * cell - 1, 26 + (i + 1) * cell - 1)
            draw.rectangle(box, fill=tuple(round(255 - strength * (255 - colour)) for colour in full))
            if count <= MAX_NAMED_CLASSES and value:
                ink = "white" if strength > 0.6 else "black"
                draw.text((margin_left + j * cell + cell // 2, middle), f"{value}", fill=ink, font=font, anchor="mm")
    return PngImage.of(sheet)
