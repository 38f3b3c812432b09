"""One scale of pixel values per model: the raw values of black and white, whatever the type and the file.

Recognized are whole numbers from 0 to 255 (bytes), values from 0 to 1 (shares of white), and whole numbers that use at
least half of the levels of 16 bits. For all other values the job names black and white: `data.pixel_range`. The scale is
stored with the model, and new images on another scale are refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NoReturn

import numpy as np
import torch
from torch import Tensor

from drivetrain.data.dataset import InputRecord
from drivetrain.data.stateless_random import Ids
from drivetrain.errors import DataError
from drivetrain.tasks.image.decode import MAX_UNSEEN_DIFFERENCE, ImageHeader
from drivetrain.tasks.image.image_table import Images, ImageSplit
from drivetrain.tasks.image.npz_images import ImageArrays
from drivetrain.tasks.image.preprocess import (
    BYTES,
    COLORS,
    SHARES,
    ImagePreprocessing,
    Range,
    find_scale,
    from_preprocessing,
    measure_array,
)
from drivetrain.tasks.image.resize import GROUNDS, Resize

_OTHER_SCALE_RATIO = 16
"""Ratio of a scale to its brightest pixel above which images are on another scale: 12 bits have 16 times as many levels as 8."""
_OVERSHOOT_SHARE = 0.1
"""Largest overshoot of resizing and of noise, as a share of the scale."""
_MEASURED_IMAGES, _MEASURED_VALUES = 1000, 1_000_000
"""Largest number of images and of their values used to compute percentiles of arrays."""
_READ_IMAGES = 4096
"""Number of images of an array that are copied at once."""
_CHECKED_IMAGES = 200
"""Largest number of images checked in a split other than the training split."""
_MIN_IMAGES_FOR_RANGE = 8
"""Smallest number of images for which a range that is narrow for all of them is no coincidence."""
_INVISIBLE_SHARE = 0.05
"""Largest share of transparent images that may be invisible on the usual ground; above, another ground is chosen."""


@dataclass(frozen=True)
class PixelValues:
    """Raw values of arrays, or of the gray files of 16 bits among some images."""

    count: int
    """Number of images."""
    text: str
    """Description for messages."""
    extremes: Range
    """Smallest and largest value."""
    percentiles: Range
    """Values below and above 1 % of the others."""
    whole_numbers: bool = True

    @property
    def scale(self) -> Range | None:
        """Recognized scale; None if the values show none."""
        return find_scale(*self.extremes, whole_numbers=self.whole_numbers)

    def fit(self, scale: Range) -> bool:
        """Return whether the values may be on this scale: inside of it, and not all of them nearly black."""
        if self.scale == scale or scale[0] == scale[1]:
            return self.scale == scale
        # Outside of the usual scales, some pixels of a sensor are far too bright.
        low, high = self.extremes if scale in COLORS else self.percentiles
        margin = _OVERSHOOT_SHARE * (scale[1] - scale[0])
        is_narrow = high != scale[0] and (high - scale[0]) * _OTHER_SCALE_RATIO < scale[1] - scale[0]
        if is_narrow and (scale in COLORS or self.count >= _MIN_IMAGES_FOR_RANGE):
            return False
        return scale[0] - margin <= low and high <= scale[1] + margin


def choose(
    images: Images, rows: Ids, resize: Resize, key: str, declared: Range | None, recorded: InputRecord | None
) -> tuple[Images, Resize, Range, list[str]]:
    """Choose the scale of training images: the stored or the declared scale, or the scale that the values show.

    Returns:
        The images on that scale, the rule for decoding them, the scale, and notes.

    Raises:
        DataError: if the values show no scale, or another one than the job or the earlier run has.
    """
    earlier = from_preprocessing(dict(recorded.preprocessing)).scale if recorded else None
    if recorded and recorded.same_data:
        assert earlier
        return *convert(images, rows, earlier, resize, key), earlier, []
    values = measure(images, rows)
    shown = values.scale if values else BYTES
    if declared == SHARES and shown == BYTES:
        _refuse(key, values.text if values else "the images have 8 bits", SHARES, is_declared=True)
    scale = declared or shown
    if earlier and not {scale, earlier} <= {*COLORS}:
        if declared and declared != earlier:
            _refuse(key, f"data.pixel_range is between {declared[0]:g} and {declared[1]:g}", earlier)
        scale = earlier
    if scale is None:
        assert values
        if len({*values.extremes}) == 2:
            _ask(key, values)
        scale = values.extremes[0], values.extremes[0] + 1  # of one color, which `check_visible` refuses
    resize = replace(resize, range_16_bit=scale if values and not isinstance(images, ImageArrays) else None)
    images, resize = convert(images, rows, scale, resize, key, is_declared=earlier is None)
    notes = []
    if values and scale not in (BYTES, SHARES):
        notes.append(f"{values.text}: {scale[0]:,g} is black, and {scale[1]:,g} is white")
    return images, resize, scale, notes


def convert(
    images: Images, rows: Ids, scale: Range, resize: Resize, key: str, *, is_declared: bool = False
) -> tuple[Images, Resize]:
    """Convert images to the scale of a model; returns them, and the rule for decoding them.

    Raises:
        DataError: if they are on another scale: the network would see nearly black or far too bright images.
    """
    is_color = scale in COLORS
    if isinstance(images, ImageArrays):
        if is_color and images.pixels.dtype == torch.uint8:
            return images, resize
    else:
        headers = images.headers[rows].tolist()
        _check_colors_of_16_bits(headers, key)
        count = sum(not (header and header.range_16_bit) for header in headers)
        if count and not is_color:
            _refuse(key, f"{count:,} images have 8 bits", scale, is_declared=is_declared)
    values = measure(images, rows)
    if values is None:
        return images, resize
    if isinstance(images, ImageArrays):
        if not values.fit(scale):
            _refuse(key, values.text, scale, is_declared=is_declared)
        return replace(images, pixels=images.pixels.float()), resize
    # Files become 8 bits when they are decoded, by their own scale if the model has seen no others of 16 bits.
    range_16_bit = resize.range_16_bit or (values.scale if is_color else scale)
    if range_16_bit is None or not values.fit(range_16_bit):
        _refuse(key, values.text, scale, is_declared=is_declared)
    return images, replace(resize, range_16_bit=range_16_bit)


def measure(images: Images, rows: Ids) -> PixelValues | None:
    """Measure the values of arrays or of gray files of 16 bits; None if there are none."""
    if not len(rows):
        return None
    if isinstance(images, ImageArrays):
        blocks = np.array_split(rows, -(-len(rows) // _READ_IMAGES))
        lows, highs, whole_numbers = zip(
            *(measure_array(images.gather(block).numpy()) for block in blocks), strict=True
        )
        sample = images.gather(rows[:: -(-len(rows) // _MEASURED_IMAGES)]).numpy().reshape(-1)
        low, high = np.percentile(sample[:: -(-len(sample) // _MEASURED_VALUES)], (1, 99)).tolist()
        text = f"pixels of {images.path} are between {min(lows):g} and {max(highs):g}"
        return PixelValues(len(rows), text, (min(lows), max(highs)), (low, high), all(whole_numbers))
    ranges = [header.range_16_bit for header in images.headers[rows].tolist() if header and header.range_16_bit]
    if not ranges:
        return None
    lowest, lows, highs, highest = zip(*ranges, strict=True)
    text = f"{len(ranges):,} gray files of 16 bits have values from {min(lowest):g} to {max(highest):g}"
    return PixelValues(len(ranges), text, (min(lowest), max(highest)), (min(lows), max(highs)))


def choose_ground(images: Images, rows: Ids, resize: Resize) -> tuple[Resize, list[str]]:
    """Choose the ground of transparent training images: white, unless too many need another one; also returns notes."""
    if isinstance(images, ImageArrays):
        return resize, []
    headers = images.headers[rows].tolist()
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
            f"{description} as the network sees them, and all of these of the same: {color}",
            "images in which something can be seen after decoding and resizing",
            "look at one of the files: it may be blank, use few of its bits, or be visible only by its transparency; "
            "data.fit chooses which part of it is used",
            key=key,
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


def _check_colors_of_16_bits(headers: Sequence[ImageHeader | None], key: str) -> None:
    """Refuse color files of 16 bits per channel that use only the lower bits, which Pillow drops."""
    highest = [header.color_16_bit for header in headers if header and header.color_16_bit is not None]
    if highest and max(highest) < 2**14 >> 8:
        raise DataError(
            f"{len(highest):,} color files have 16 bits a channel and use at most 14 of them; "
            "only the upper 8 can be read, in which they are nearly black",
            "color files of 8 bits a channel, or that use all 16 bits; gray files of 16 bits",
            "scale their values to 0 to 255, and save them with 8 bits a channel",
            key=key,
        )


def _ask(key: str, values: PixelValues) -> NoReturn:
    """Raise the error for training images whose values show no scale."""
    low, high = values.extremes if values.fit(values.extremes) else values.percentiles
    raise DataError(
        f"{values.text}, which are the values of no usual scale; 98 of 100 are between {values.percentiles[0]:g} and "
        f"{values.percentiles[1]:g}",
        "whole numbers from 0 to 255, values from 0 to 1, at least half of the levels of 16 bits; or the values of black and white in "
        "data.pixel_range",
        f"set data.pixel_range: [{low:g}, {high:g}], or the values of black and white of all your images",
        key=key,
    )


def _refuse(key: str, description: str, scale: Range, *, is_declared: bool = False) -> NoReturn:
    """Raise the error for images on another scale than the model, or than the job declares."""
    text = f"between {scale[0]:g} and {scale[1]:g}"
    if is_declared:
        description += f", but data.pixel_range is {text}"
        action = "correct data.pixel_range, or remove it"
    else:
        description += f", but the training images were {text}"
        action = f"bring the values to the scale of the training images, {text}"
        action = "multiply by 255, and store them as uint8" if scale == BYTES else action
    raise DataError(description, "the same range for both", action, key=key)
