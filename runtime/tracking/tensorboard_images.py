"""Pictures for TensorBoard: a grid of images, and the confusion matrix."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from runtime.tracking.tensorboard import PngImage, Shown

SMALLEST = 96
"""Pixels; smaller images are enlarged to this side."""
NAMED = 20
"""Up to this many classes, the confusion matrix shows names and counts."""


def grid(images: Tensor, mean: object = None, std: object = None) -> PngImage:
    """Images (N, channels, height, width) in a grid of four columns, with the normalization undone."""
    if mean and std:
        images = images * torch.tensor(std).view(1, -1, 1, 1) + torch.tensor(mean).view(1, -1, 1, 1)
    else:
        images = (images - images.min()) / (images.max() - images.min()).clamp_min(1e-9)
    top = 1.0 if images.max() <= 2 else 255.0
    pixels = (images / top).clamp(0, 1).mul(255).to(torch.uint8)[:, :3]
    pixels = pixels.expand(-1, 3, -1, -1) if pixels.shape[1] != 3 else pixels
    side = max(SMALLEST, *pixels.shape[2:])
    columns = min(4, len(pixels))
    sheet = Image.new("RGB", (columns * (side + 4), -(-len(pixels) // columns) * (side + 4)), "white")
    for number, one in enumerate(pixels):
        tile = Image.fromarray(one.permute(1, 2, 0).contiguous().numpy())
        tile.thumbnail((side, side))
        tile = tile.resize((side, side), Image.Resampling.NEAREST) if max(tile.size) < side else tile
        sheet.paste(tile, (number % columns * (side + 4) + 2, number // columns * (side + 4) + 2))
    return _png(sheet)


def confusions(counts: Mapping[str, Any]) -> dict[str, Shown]:
    """A picture for each head, by tag."""
    return {
        f"confusion/{head}" if head else "confusion": partial(confusion, one["classes"], one["matrix"])
        for head, one in counts.items()
    }


def confusion(classes: list[str], matrix: list[list[int]]) -> PngImage:
    """Confusion matrix with true classes by row; the color is the share among the row's samples."""
    count = len(classes)
    cell = max(24, 340 // count) if count <= NAMED else max(2, 640 // count)
    font = ImageFont.load_default(max(10, min(16, cell // 2)))
    names = [name[:14] for name in classes] if count <= NAMED else [""]
    left = round(max(font.getlength(name) for name in names)) + 12
    sheet = Image.new("RGB", (left + cell * count + 8, cell * count + 32), "white")
    draw = ImageDraw.Draw(sheet)
    draw.text((6, 4), "rows: true class, columns: predicted class", fill="black", font=font)
    for i, row in enumerate(matrix):
        middle = 26 + i * cell + cell // 2
        if count <= NAMED:
            draw.text((6, middle), names[i], fill="black", font=font, anchor="lm")
        for j, value in enumerate(row):
            # The square root makes rare mistakes visible.
            strength = math.sqrt(value / (sum(row) or 1))
            full = (31, 119, 180) if i == j else (214, 70, 40)
            box = (left + j * cell, 26 + i * cell, left + (j + 1) * cell - 1, 26 + (i + 1) * cell - 1)
            draw.rectangle(box, fill=tuple(round(255 - strength * (255 - colour)) for colour in full))
            if count <= NAMED and value:
                ink = "white" if strength > 0.6 else "black"
                draw.text((left + j * cell + cell // 2, middle), f"{value}", fill=ink, font=font, anchor="mm")
    return _png(sheet)


def _png(sheet: Image.Image) -> PngImage:
    data = io.BytesIO()
    sheet.save(data, "png")
    return PngImage(data.getvalue(), *sheet.size)
