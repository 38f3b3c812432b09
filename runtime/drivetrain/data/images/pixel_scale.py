"""One scale of pixel values per model: the raw values of black and white, whatever the type and the file.

Whole numbers from 0 to 255 are bytes, as uint8, int64, float32 or in a file of 16 bits. Fractions and whole numbers
from 0 to 1 are shares of white. Values that use 16 bits have black at 0 and white at 65535. For other values, the
training images set the range. The scale is stored with the model, and new images on another scale are refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NoReturn

import numpy as np
import torch
from torch import Tensor

from drivetrain.data.images.decode import MAX_UNSEEN_DIFFERENCE, ImageHeader
from drivetrain.data.images.image_files import Files
from drivetrain.data.images.npz_images import ImageArrays
from drivetrain.data.images.preprocess import (
    BYTES,
    COLORS,
    FULL,
    SHARES,
    ImagePreprocessing,
    Range,
    find_scale,
    measure_array,
)
from drivetrain.data.images.resize import GROUNDS, Resize
from drivetrain.data.images.source import Images, ImageSplit
from drivetrain.data.stateless_random import Ids
from drivetrain.errors import DataError, SpecError
from drivetrain.job.images import ImageJob

FileRange = tuple[float, float, float, float]
"""Smallest value, 1st and 99th percentile, and largest value of pixels."""
_FEW_BITS = 2**14 - 1
"""Largest value of files that use at most 14 of their 16 bits: on the scale of 16 bits they are nearly black."""
_OTHER_SCALE_RATIO = 16
"""Ratio of two ranges above which the narrower one is on another scale, or the wider one has outliers."""
_WIDER_SPREAD_RATIO = 4
"""Ratio of spreads, of new to training images, above which the new images are on another scale."""
_OVERSHOOT_SHARE = 0.1
"""Largest overshoot of resizing, as a share of the range."""
_MEASURED_VALUES = 1_000_000
"""Largest number of values of an array used to compute percentiles."""
_CHECKED_IMAGES = 200
"""Largest number of images checked in a split other than the training split."""
_MIN_IMAGES_FOR_RANGE = 8
"""Smallest number of images for which a range that is narrow for all of them is no coincidence."""
_INVISIBLE_SHARE = 0.05
"""Largest share of transparent images that may be invisible on the usual ground; above, another ground is chosen."""


def read_as_trained(
    images: Images, rows: Ids, model: ImagePreprocessing, key: str, *, starts_from: bool = False
) -> tuple[Images, Resize]:
    """Convert images of new data, of validation data or of a resumed run to the scale of a model.

    Args:
        starts_from: whether they are the training images of a run that starts from the model. Another scale of the same
            colors is then right, and `keep_known` checks it.

    Returns:
        The images, and the rule for decoding them.

    Raises:
        DataError: if they are on another scale: the network would see nearly black or far too bright images.
    """
    if isinstance(images, ImageArrays):
        return _convert_arrays(images, rows, model, key, starts_from=starts_from), model.resize
    if not len(rows):
        return images, model.resize
    headers, scale = images.headers[rows].tolist(), (model.low, model.high)
    ranges_16_bit = [header.range_16_bit for header in headers if header and header.range_16_bit]
    if len(ranges_16_bit) < len(rows) and not model.takes_bytes:
        _refuse(key, f"{len(rows) - len(ranges_16_bit):,} images have 8 bits", model)
    _check_colors_of_16_bits(headers, key)
    if not ranges_16_bit:
        return images, model.resize
    lowest, low, high, highest = _join_ranges(ranges_16_bit)
    description = f"{len(ranges_16_bit):,} files of 16 bits have values from {lowest:g} to {highest:g}"
    if scale not in COLORS:
        if _is_elsewhere((lowest, low, high, highest), len(ranges_16_bit), scale):
            _refuse(key, description, model)
        return images, replace(model.resize, range_16_bit=scale)
    # Gray files of 16 bits keep the range measured in training; without one, their values determine it.
    trained_range = model.resize.range_16_bit
    new_scale = BYTES if trained_range is None and highest <= 255 else trained_range or FULL
    if highest > new_scale[1] or (new_scale == FULL and highest <= _FEW_BITS) or (new_scale == BYTES and highest == 1):
        _refuse(key, description, model)
    return images, replace(model.resize, range_16_bit=new_scale)


def measure_training_files(images: Images, rows: Ids, resize: Resize, key: str) -> tuple[Resize, list[str]]:
    """Choose how files are decoded: the range of 16-bit values, and a ground for transparency; also returns notes.

    Raises:
        DataError: if color files use only the lower bits, which Pillow drops.
    """
    if isinstance(images, ImageArrays):
        return resize, []
    headers = images.headers[rows].tolist()
    _check_colors_of_16_bits(headers, key)
    resize, notes = _measure_range(headers, resize)
    resize, ground_notes = _choose_ground(headers, resize)
    return resize, notes + ground_notes


def takes_bytes(images: Images, rows: Ids, scale: Range) -> bool:
    """Return whether images of 8 bits are on the scale of these training images."""
    if scale in COLORS:
        return True
    return isinstance(images, Files) and any(not (header and header.range_16_bit) for header in images.headers[rows])


def check_visible(raw: Tensor, key: str) -> list[str]:
    """Return a note on images of one color among `raw`, (N, C, S, S): the network's view before normalization.

    Raises:
        DataError: if more than half of the images have one color, nearly the same for all of them.
    """
    flat = raw.flatten(2).float()
    low, high = flat.amin(2), flat.amax(2)
    is_plain = (high == low).all(dim=1)
    count, colors = int(is_plain.sum()), low[is_plain]
    if not count:
        return []
    description = f"{count:,} of {len(raw):,} images are of one color"
    full_range = 255 if raw.dtype == torch.uint8 else float(flat.max() - flat.min())
    have_same_color = float((colors.amax(0) - colors.amin(0)).max()) <= MAX_UNSEEN_DIFFERENCE / 255 * full_range
    if len(raw) >= _MIN_IMAGES_FOR_RANGE and 2 * count > len(raw) and have_same_color:
        color = "/".join(f"{value:g}" for value in colors[0].tolist())
        raise DataError(
            f"{key}: {description} as the network sees them, and all of these of the same: {color}",
            "images in which something can be seen after decoding and resizing",
            "look at one of the files: it may be blank, use few of its bits, or be visible only by its transparency; "
            "data.fit chooses which part of it is used",
        )
    return [description]


def check_some(split: ImageSplit, model: ImagePreprocessing, key: str) -> list[str]:
    """Check some images of a split that is not for training, as `check_visible` does.

    Raises:
        DataError: if most of them have the same single color.
    """
    if not len(split):
        return []
    (raw,) = split.gather(np.unique(np.linspace(0, len(split) - 1, _CHECKED_IMAGES).astype(np.int64)))
    return check_visible(raw, key)


def keep_known(
    job: ImageJob, earlier: ImagePreprocessing, current: ImagePreprocessing, kind: torch.dtype
) -> ImagePreprocessing:
    """Adapt the preprocessing of an earlier run to the pixels of this job.

    Raises:
        SpecError: if the pixels are on another scale: the network would see nearly black or far too bright images.
    """
    if (earlier.low, earlier.high) in COLORS and (current.low, current.high) in COLORS:
        return replace(earlier, low=current.low, high=current.high, takes_bytes=current.takes_bytes)
    if kind != torch.uint8 and (earlier.low, earlier.high) in COLORS:
        description = f"was trained on pixels from {earlier.low:g} to {earlier.high:g}; data.train has {current.low:g} to {current.high:g}"
        problem = job.problem(job.model_key("name"), description, "pixels on the same scale", "scale them in the file")
        raise SpecError([problem])
    return earlier


def _convert_arrays(
    images: ImageArrays, rows: Ids, model: ImagePreprocessing, key: str, *, starts_from: bool
) -> ImageArrays:
    """Convert arrays in memory as `read_as_trained` does."""
    scale = model.low, model.high
    if (starts_from and scale in COLORS) or not len(rows):
        return images
    pixels = (images.pixels if len(rows) == len(images) else images.gather(rows)).numpy()
    lowest, highest, whole_numbers = measure_array(pixels)
    new_scale = find_scale(lowest, highest, whole_numbers=whole_numbers)
    scale_range = new_scale if new_scale == SHARES else (lowest, highest)
    description = f"pixels of {images.path} are between {scale_range[0]:g} and {scale_range[1]:g}"
    if scale in COLORS:
        if not _has_same_colors(new_scale, lowest, highest, scale):
            _refuse(key, description, model)
        if new_scale == BYTES and images.pixels.is_floating_point():
            return images.map_array(lambda pixels: pixels * (scale[1] / 255))
        return images
    if new_scale == BYTES and model.takes_bytes:
        return images
    flat = pixels.reshape(-1)
    low, high = np.percentile(flat[:: -(-len(flat) // _MEASURED_VALUES)], (1, 99))
    if _is_elsewhere((lowest, float(low), float(high), highest), len(rows), scale):
        _refuse(key, description, model)
    return images.map_array(lambda pixels: pixels.float())


def _join_ranges(ranges: Sequence[FileRange]) -> FileRange:
    """Join the ranges of several files: smallest value, 1st and 99th percentile, and largest value."""
    lowest, low, high, highest = zip(*ranges, strict=True)
    return min(lowest), min(low), max(high), max(highest)


def _has_same_colors(new_scale: Range, lowest: float, highest: float, scale: Range) -> bool:
    """Return whether values from `lowest` to `highest`, on the scale `new_scale`, are colors on a model's scale."""
    if new_scale in (BYTES, scale) or highest == lowest == 0:
        return True
    if new_scale in COLORS or lowest < -_OVERSHOOT_SHARE * scale[1] or highest > (1 + _OVERSHOOT_SHARE) * scale[1]:
        return False
    # Values around 0 with a small deviation are standardized values.
    enough = {FULL: _FEW_BITS, BYTES: 1 if lowest >= 0 else _OVERSHOOT_SHARE * scale[1]}.get(scale, 0)
    return highest > enough


def _is_elsewhere(values: FileRange, count: int, scale: Range) -> bool:
    """Return whether `count` images with these values are on another scale than the training images."""
    lowest, low, high, highest = values
    span = scale[1] - scale[0]
    is_narrow = count >= _MIN_IMAGES_FOR_RANGE and (highest - lowest) * _OTHER_SCALE_RATIO < span
    return low > scale[1] or high < scale[0] or high - low > _WIDER_SPREAD_RATIO * span or is_narrow


def _check_colors_of_16_bits(headers: Sequence[ImageHeader | None], key: str) -> None:
    """Refuse color files of 16 bits per channel that use only the lower bits, which Pillow drops."""
    highest = [header.color_16_bit for header in headers if header and header.color_16_bit is not None]
    if highest and max(highest) <= _FEW_BITS >> 8:
        raise DataError(
            f"{key}: {len(highest):,} color files have 16 bits a channel and use at most 14 of them; "
            "only the upper 8 can be read, in which they are nearly black",
            "color files of 8 bits a channel, or that use all 16 bits; gray files of 16 bits, whose range is measured",
            "scale their values to 0 to 255, and save them with 8 bits a channel",
        )


def _measure_range(headers: Sequence[ImageHeader | None], resize: Resize) -> tuple[Resize, list[str]]:
    """Measure the range of the gray 16-bit files among the training images; returns the new resize and notes."""
    ranges_16_bit = [header.range_16_bit for header in headers if header and header.range_16_bit]
    if not ranges_16_bit:
        return resize, []
    lowest, low, high, highest = _join_ranges(ranges_16_bit)
    has_outliers = low < high and (high - low) * _OTHER_SCALE_RATIO < highest - lowest
    measured = (low, high) if has_outliers else (lowest, highest)
    scale = find_scale(*measured, whole_numbers=True) if lowest < highest else FULL
    note = (
        f"{len(ranges_16_bit):,} gray training files of 16 bits have values from {lowest:,.0f} to {highest:,.0f}, which use "
        f"{highest - lowest + 1:,.0f} of 65,536 levels; {scale[0]:,.0f} to {scale[1]:,.0f} become the 256 from black to white"
    )
    if has_outliers:
        note += f", and rare values beyond are cut off: 98 of 100 pixels are between {low:,.0f} and {high:,.0f}"
    if len(ranges_16_bit) < len(headers):
        note += f"; {len(headers) - len(ranges_16_bit):,} files of 8 bits stay as they are"
    return replace(resize, range_16_bit=scale), [note]


def _choose_ground(headers: Sequence[ImageHeader | None], resize: Resize) -> tuple[Resize, list[str]]:
    """Choose the ground of transparent training images: white, unless too many need another one; also returns notes."""
    invisible = [header.invisible_over for header in headers if header and header.invisible_over is not None]
    invisible_count = sum(header is not None and header.colors_without_alpha for header in headers)
    notes = []
    if invisible_count:
        colors_used = "their colors are used, without the transparency"
        notes.append(f"{invisible_count:,} training images have no visible pixel; {colors_used}")
    if not invisible:
        return resize, notes
    counts = {name: sum(name in grounds and len(grounds) < len(GROUNDS) for grounds in invisible) for name in GROUNDS}
    usual_ground = next(iter(GROUNDS))
    is_usual = counts[usual_ground] <= _INVISIBLE_SHARE * len(invisible)
    ground = usual_ground if is_usual else min(counts, key=lambda name: counts[name])
    note = f"{len(invisible):,} training images are partly transparent: they lie on {ground}"
    if ground != usual_ground:
        note += f", because nothing can be seen of {counts[usual_ground]:,} of them on {usual_ground}"
    if counts[ground]:
        note += f"; nothing can be seen of {counts[ground]:,} of them"
    return replace(resize, ground=ground), [*notes, note]


def _refuse(key: str, description: str, model: ImagePreprocessing) -> NoReturn:
    """Raise the error for images on another scale than the model."""
    scale = f"between {model.low:g} and {model.high:g}"
    raise DataError(
        f"{key}: {description}, but the training images were {scale}",
        "the same range for both",
        "multiply by 255, and store them as uint8"
        if (model.low, model.high) == BYTES
        else f"bring the values to the scale of the training images, {scale}",
    )
