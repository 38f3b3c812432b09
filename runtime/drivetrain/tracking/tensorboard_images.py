"""A grid of images for TensorBoard."""

from __future__ import annotations

import torch
from PIL import Image
from torch import Tensor

from drivetrain.tracking.tensorboard import PngImage

MIN_SIDE_PIXELS = 96
"""Pixels; smaller images are enlarged to this side."""


def tile(images: Tensor, mean: object = None, std: object = None) -> PngImage:
    """Images (N, channels, height, width) in a grid of four columns, with the normalization undone."""
    if mean and std:
        images = images * torch.tensor(std).view(1, -1, 1, 1) + torch.tensor(mean).view(1, -1, 1, 1)
    else:
        images = (images - images.min()) / (images.max() - images.min()).clamp_min(1e-9)
    top = 1.0 if images.max() <= 2 else 255.0
    pixels = (images / top).clamp(0, 1).mul(255).to(torch.uint8)[:, :3]
    pixels = pixels.expand(-1, 3, -1, -1) if pixels.shape[1] != 3 else pixels
    side = max(MIN_SIDE_PIXELS, *pixels.shape[2:])
    columns = min(4, len(pixels))
    sheet = Image.new("RGB", (columns * (side + 4), -(-len(pixels) // columns) * (side + 4)), "white")
    for number, one in enumerate(pixels):
        tile = Image.fromarray(one.permute(1, 2, 0).contiguous().numpy())
        tile.thumbnail((side, side))
        tile = tile.resize((side, side), Image.Resampling.NEAREST) if max(tile.size) < side else tile
        sheet.paste(tile, (number % columns * (side + 4) + 2, number // columns * (side + 4) + 2))
    return PngImage.of(sheet)
