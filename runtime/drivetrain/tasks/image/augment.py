"""Random augmentation of training images, on whole batches.

Order: resized crop, padded crop, flip, RandAugment, color jitter (brightness, contrast, saturation), erasing. Areas
that an image does not cover (padding, warps, erased patches) get the mean color of the training images, which
normalization maps to 0. All random numbers depend on (seed, purpose, epoch, sample id) only; with `views` set, they
repeat after `views` epochs.

RandAugment (Cubuk et al. 2020): a few operations in sequence, chosen at random per image from a list of 14.
The strength of all is `magnitude`, at most 30; the direction is random if there are two. At 30: shear by 0.3, translate
by 150/331 of the side, rotate by 30 degrees, all around the center; brightness, color, contrast and sharpness by a
factor of 0.1 or 1.9; posterize to 4 bits; solarize from 0 up. Gray images skip `color`: 13 operations.

Pixels are from 0 to 1. Color operations follow Pillow's ImageEnhance and ImageOps: `factor` has shape (N, 1, 1, 1), and
1 changes nothing. Sums over an image use integers, so that they do not depend on the order of summation. Warps and
random resized crops are one bilinear sampling each: a matrix (N, 2, 3) maps a point of the output to its point in the
source, both as (x, y) from -1 to 1 with the center at 0. Grids are computed elementwise: the last bit of a matrix
product would depend on the batch size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from drivetrain.data import stateless_random
from drivetrain.data.dataset import onto
from drivetrain.data.stateless_random import Ids
from drivetrain.job.data import ColorJitter, Erasing, ImageAugment

Floats = npt.NDArray[np.float64]
Names = npt.NDArray[np.str_]
LUMA = (0.299, 0.587, 0.114)
"""Weights of red, green and blue in gray (ITU-R BT.601, as in Pillow and JPEG)."""
MIN_ASPECT_RATIO = 0.3
"""Smallest width / height of an erased patch; its inverse is the largest (Zhong et al. 2020)."""


@dataclass(frozen=True)
class Augment:
    """Augmentations that a job requests."""

    spec: ImageAugment
    seed: int
    fill: tuple[float, ...]
    """Mean color of the training images."""

    def __call__(self, pixels: Tensor, ids: Ids, epoch: int) -> Tensor:
        """Augment images, shape (N, C, S, S), from 0 to 1; `pixels` itself is not modified."""
        spec = self.spec
        repeated_epoch = epoch % spec.views if spec.views else epoch

        def draw(purpose: str, count: int) -> Floats:
            """Draw random numbers in [0, 1), shape (N, count), different for each purpose."""
            return stateless_random.draw_uniform(self.seed, purpose, repeated_epoch, ids, count)

        fill = onto(pixels.device, self.fill, pixels.dtype).view(-1, 1, 1)
        if spec.resized_crop:
            pixels = crop(pixels, draw("resized_crop", 4), spec.resized_crop.scale, spec.resized_crop.ratio)
        if spec.crop_padding:
            pixels = crop_padded(pixels, draw("crop_padding", 2), spec.crop_padding, fill)
        if spec.flip:
            pixels = torch.where(_per_image(draw("flip", 1) < 0.5, pixels), pixels.flip(3), pixels)
        if spec.randaugment:
            drawn = draw("randaugment", 2 * spec.randaugment.num_ops)
            pixels = randaugment(pixels, drawn, spec.randaugment.magnitude, fill)
        if spec.color_jitter:
            pixels = jitter(pixels, draw("color_jitter", 3), spec.color_jitter)
        if spec.erasing:
            pixels = erase(pixels, draw("erasing", 5), spec.erasing, fill)
        return pixels


def crop_padded(pixels: Tensor, drawn: Floats, padding: int, fill: Tensor) -> Tensor:
    """Shift each image by up to `padding` pixels in each direction; `drawn` has shape (N, 2)."""
    count, channels, height, width = pixels.shape
    padded = fill.expand(count, channels, height + 2 * padding, width + 2 * padding).clone()
    padded[:, :, padding : padding + height, padding : padding + width] = pixels
    first_line, first_column = onto(pixels.device, (drawn.T * (2 * padding + 1)).astype(np.int64))
    # All possible crops are views of the same memory, shape (N, C, 2 padding + 1, 2 padding + 1, height, width): one
    # kernel copies the drawn crops.
    crops = padded.unfold(2, height, 1).unfold(3, width, 1)
    return crops[torch.arange(count, device=pixels.device), :, first_line, first_column]


def jitter(pixels: Tensor, drawn: Floats, spec: ColorJitter) -> Tensor:
    """Change brightness, contrast and saturation, each by a factor in [1 - x, 1 + x]; `drawn` has shape (N, 3)."""
    changes = {brightness: spec.brightness, contrast: spec.contrast, saturation: spec.saturation}
    for (change, max_change), draw in zip(changes.items(), drawn.T, strict=True):
        if max_change:
            pixels = change(pixels, _per_image(1 + max_change * (2 * draw - 1), pixels).to(pixels.dtype))
    return pixels


def erase(pixels: Tensor, drawn: Floats, spec: Erasing, fill: Tensor) -> Tensor:
    """Erase a patch in some images; `drawn` (chance, area, aspect ratio, y, x) has shape (N, 5)."""
    height, width = pixels.shape[2:]
    chance, area_draw, ratio_draw, y, x = drawn.T
    area = spec.area[0] + (spec.area[1] - spec.area[0]) * area_draw
    ratio = np.exp(np.log(MIN_ASPECT_RATIO) * (2 * ratio_draw - 1))
    patch_height = np.clip(np.rint(np.sqrt(area / ratio) * height), 1, height)
    patch_width = np.clip(np.rint(np.sqrt(area * ratio) * width), 1, width)
    top = np.floor(y * (height - patch_height + 1))
    first_x = np.floor(x * (width - patch_width + 1))
    # A patch of height 0 erases nothing.
    patch_height = np.where(chance < spec.probability, patch_height, 0)
    # Compared on the device: four numbers per image are copied, not a mask of its size.
    edges = onto(pixels.device, np.stack([top, top + patch_height, first_x, first_x + patch_width]).astype(np.int64))
    first_line, end_line, first_column, end_column = edges[:, :, None]
    lines, columns = torch.arange(height, device=pixels.device), torch.arange(width, device=pixels.device)
    vertical = (lines >= first_line) & (lines < end_line)
    horizontal = (columns >= first_column) & (columns < end_column)
    return torch.where((vertical[:, :, None] & horizontal[:, None, :])[:, None], fill, pixels)


def _per_image(values: Floats | npt.NDArray[np.bool_], like: Tensor) -> Tensor:
    """Reshape one value per image to (N, 1, 1, 1), on the device of `like`."""
    return onto(like.device, values).view(-1, 1, 1, 1)


def brightness(pixels: Tensor, factor: Tensor) -> Tensor:
    """Scale the distance to black."""
    return (pixels * factor).clamp_(0, 1)


def contrast(pixels: Tensor, factor: Tensor) -> Tensor:
    """Scale the distance to the mean of the gray image."""
    grey = levels(luma(pixels)).sum(dim=(1, 2, 3), keepdim=True)
    return _blend(pixels, grey.to(pixels.dtype) / (255 * pixels.shape[2] * pixels.shape[3]), factor)


def saturation(pixels: Tensor, factor: Tensor) -> Tensor:
    """Scale the distance to the gray image; a gray image stays unchanged."""
    return _blend(pixels, luma(pixels), factor)


def sharpness(pixels: Tensor, factor: Tensor) -> Tensor:
    """Scale the distance to a smoothed copy; border pixels stay unchanged."""
    rows = pixels[:, :, :-2] + pixels[:, :, 1:-1] + pixels[:, :, 2:]
    box = rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:]
    smooth = pixels.clone()
    smooth[..., 1:-1, 1:-1] = (box + 4 * pixels[..., 1:-1, 1:-1]) / 13
    return _blend(pixels, smooth, factor)


def posterize(pixels: Tensor, bits: int) -> Tensor:
    """Keep only the highest `bits` of 8."""
    return levels(pixels).bitwise_and_(256 - 2 ** (8 - bits)).to(pixels.dtype) / 255


def solarize(pixels: Tensor, threshold: float) -> Tensor:
    """Invert pixels of at least `threshold`."""
    return torch.where(pixels >= threshold, 1 - pixels, pixels)


def autocontrast(pixels: Tensor) -> Tensor:
    """Stretch each channel to the full range."""
    low, high = pixels.amin(dim=(2, 3), keepdim=True), pixels.amax(dim=(2, 3), keepdim=True)
    return torch.where(high > low, (pixels - low) / (high - low).clamp_min(1e-12), pixels)


def equalize(pixels: Tensor) -> Tensor:
    """Equalize the histogram of each channel."""
    level = levels(pixels).flatten(2).flatten(0, 1)
    counts = torch.zeros(len(level), 256, dtype=torch.int64, device=level.device)
    counts.scatter_add_(1, level, torch.ones_like(level))
    highest = counts.gather(1, level.amax(dim=1, keepdim=True))
    step = (level.shape[1] - highest) // 255
    table = ((counts.cumsum(dim=1) - counts + step // 2) // step.clamp_min(1)).clamp_(max=255)
    equalized = torch.where(step > 0, table.gather(1, level), level)
    return (equalized.to(pixels.dtype) / 255).view_as(pixels)


def levels(pixels: Tensor) -> Tensor:
    """Convert pixels to integers from 0 to 255, int64."""
    return (pixels * 255).round().to(torch.int64)


def _blend(pixels: Tensor, other: Tensor, factor: Tensor) -> Tensor:
    """Scale the distance of `pixels` to `other`, and clamp to 0 to 1."""
    return (other + (pixels - other) * factor).clamp_(0, 1)


def luma(pixels: Tensor) -> Tensor:
    """Convert float images (N, C, H, W) to gray images (N, 1, H, W)."""
    if pixels.shape[1] == 1:
        return pixels
    red, green, blue = (pixels[:, i : i + 1] * share for i, share in enumerate(LUMA))
    return red + green + blue


def warp(pixels: Tensor, matrices: Floats, fill: Tensor) -> Tensor:
    """Warp images; areas outside of the source get the color `fill`.

    Args:
        pixels: shape (N, C, H, W).
        matrices: shape (N, 2, 3), from output to source.
        fill: shape (C, 1, 1).
    """
    return _sample(pixels - fill, matrices, "zeros").add_(fill)


def crop(pixels: Tensor, drawn: Floats, scale: tuple[float, float], ratio: tuple[float, float]) -> Tensor:
    """Crop each image at random, and resize it to the full size (Szegedy et al. 2015).

    A crop is never larger than the image, so sampling only magnifies and needs no antialiasing. Sides longer than the
    image are clipped.

    Args:
        pixels: shape (N, C, H, W).
        drawn: random numbers in [0, 1) for area, aspect ratio, x and y; shape (N, 4).
        scale: smallest and largest share of the area.
        ratio: smallest and largest width / height; log-uniform between them.
    """
    area = scale[0] + (scale[1] - scale[0]) * drawn[:, 0]
    aspect_ratio = np.exp(np.log(ratio[0]) + np.log(ratio[1] / ratio[0]) * drawn[:, 1])
    width, height = np.minimum(np.sqrt(area * aspect_ratio), 1), np.minimum(np.sqrt(area / aspect_ratio), 1)
    matrices = identity(len(pixels))
    matrices[:, 0, 0], matrices[:, 1, 1] = width, height
    matrices[:, 0, 2], matrices[:, 1, 2] = (1 - width) * (2 * drawn[:, 2] - 1), (1 - height) * (2 * drawn[:, 3] - 1)
    return _sample(pixels, matrices, "border")


def identity(count: int) -> Floats:
    """Return identity matrices, shape (count, 2, 3)."""
    return np.tile(np.eye(2, 3), (count, 1, 1))


def _sample(pixels: Tensor, matrices: Floats, outside: str) -> Tensor:
    """Sample the source of each output pixel; `outside` is the padding mode of grid_sample."""
    # Two broadcast dimensions for the lines and columns of the grid.
    m = onto(pixels.device, matrices, pixels.dtype)[:, :, :, None, None]
    # Pixel centers, for sides from -1 to 1.
    y, x = ((torch.arange(n, device=pixels.device, dtype=pixels.dtype) * 2 + 1) / n - 1 for n in pixels.shape[2:])
    y, x = y[:, None], x[None, :]
    grid = torch.stack([m[:, i, 0] * x + m[:, i, 1] * y + m[:, i, 2] for i in (0, 1)], dim=-1)
    return functional.grid_sample(pixels, grid, "bilinear", outside, align_corners=False)


MAX_MAGNITUDE = 30
"""Magnitude at which each operation has its full strength."""
MOVES = ("shear_x", "shear_y", "translate_x", "translate_y", "rotate")
"""Geometric operations, each of them one affine warp."""
FACTORS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "brightness": brightness,
    "contrast": contrast,
    "sharpness": sharpness,
    "color": saturation,
}
"""Operations that take a factor per image."""
BATCH_OPERATIONS: dict[str, Callable[[Tensor, float], Tensor]] = {
    "posterize": lambda pixels, share: posterize(pixels, 8 - round(4 * share)),
    "solarize": lambda pixels, share: solarize(pixels, 1 - share),
    "autocontrast": lambda pixels, share: autocontrast(pixels),
    "equalize": lambda pixels, share: equalize(pixels),
}
"""Operations with one strength for all images of a batch; the last two have none."""
OPERATIONS = ("identity", *MOVES, *BATCH_OPERATIONS, *FACTORS)
"""Names of all operations; `color` is last, so that gray images can choose from all but the last."""


def randaugment(pixels: Tensor, drawn: Floats, magnitude: int, fill: Tensor) -> Tensor:
    """Apply randomly chosen operations to each image.

    Args:
        pixels: shape (N, C, H, W), from 0 to 1.
        drawn: random numbers in [0, 1), two per operation (which one, which direction); shape (N, 2 * operations).
        magnitude: 0 to 30.
        fill: color of areas outside of the image, shape (C, 1, 1).
    """
    names = OPERATIONS if pixels.shape[1] == 3 else OPERATIONS[:-1]
    for operation_draw, direction_draw in zip(drawn.T[0::2], drawn.T[1::2], strict=True):
        operations = np.array(names)[(operation_draw * len(names)).astype(np.int64)]
        pixels = apply(pixels, operations, np.where(direction_draw < 0.5, -1.0, 1.0), magnitude / MAX_MAGNITUDE, fill)
    return pixels


def apply(pixels: Tensor, names: Names, signs: Floats, share: float, fill: Tensor) -> Tensor:
    """Apply one operation to each image; images with the same operation are processed together.

    Args:
        pixels: shape (N, C, H, W).
        names: the operation of each image, shape (N,).
        signs: -1 or 1 for each image, shape (N,).
        share: strength from 0 to 1.
        fill: shape (C, 1, 1).
    """
    result = pixels.clone()
    is_move = np.isin(names, MOVES)
    _replace(result, is_move, warp, _matrices(names[is_move], signs[is_move], share), fill)
    for name, change in FACTORS.items():
        is_selected = names == name
        factor = onto(pixels.device, 1 + 0.9 * share * signs[is_selected], pixels.dtype).view(-1, 1, 1, 1)
        _replace(result, is_selected, change, factor)
    for name, operation in BATCH_OPERATIONS.items():
        _replace(result, names == name, operation, share)
    return result


def _replace(
    pixels: Tensor, is_selected: npt.NDArray[np.bool_], change: Callable[..., Tensor], *arguments: object
) -> None:
    """Replace the selected images with `change(images, *arguments)`."""
    if is_selected.any():
        rows = onto(pixels.device, np.flatnonzero(is_selected))
        pixels[rows] = change(pixels[rows], *arguments)


def _matrices(names: Names, signs: Floats, share: float) -> Floats:
    """Build affine matrices from output to source, for geometric operations; shape (N, 2, 3)."""
    matrices = identity(len(names))
    # Entry that each operation changes: row, column and largest value. In these coordinates a side has length 2.
    matrix_entries = {
        "shear_x": (0, 1, 0.3),
        "shear_y": (1, 0, 0.3),
        "translate_x": (0, 2, 300 / 331),
        "translate_y": (1, 2, 300 / 331),
    }
    for name, (row, column, max_value) in matrix_entries.items():
        is_selected = names == name
        matrices[is_selected, row, column] = max_value * share * signs[is_selected]
    is_rotated = names == "rotate"
    angle = np.deg2rad(30 * share * signs[is_rotated])
    matrices[is_rotated, 0, 0] = matrices[is_rotated, 1, 1] = np.cos(angle)
    matrices[is_rotated, 0, 1], matrices[is_rotated, 1, 0] = -np.sin(angle), np.sin(angle)
    return matrices
