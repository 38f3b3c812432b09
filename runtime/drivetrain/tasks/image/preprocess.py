"""Converts raw pixels to network inputs, by the scale of their values.

One object serves training, validation and prediction.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from drivetrain.data.dataset import Inputs, onto
from drivetrain.data.stateless_random import Ids
from drivetrain.tasks.image import resize
from drivetrain.tasks.image.augment import Augment
from drivetrain.tasks.image.resize import DEFAULT_RESIZE, Resize

Range = tuple[float, float]
"""Values of black and white."""
BYTES, SHARES, FULL = (0.0, 255.0), (0.0, 1.0), (0.0, 65535.0)
"""Scales of 8-bit values, of shares of white, and of 16-bit values."""
COLORS = (BYTES, SHARES, FULL)
"""Scales of the same colors."""
_FULL_SPAN = 2**15
"""Smallest difference of the darkest and the brightest value of images that use 16 bits: half of the levels."""


def find_scale(low: float, high: float, *, whole_numbers: bool = True) -> Range | None:
    """Find the scale of values from `low` to `high`; `whole_numbers` says whether all of them are whole. None if unclear."""
    if low >= 0 and high <= 1:
        return SHARES
    if not whole_numbers or low < 0:
        return None
    is_full = high < 2**16 and (high - low >= _FULL_SPAN or low == high)
    return BYTES if high <= 255 else FULL if is_full else None


def measure_array(values: npt.NDArray[Any]) -> tuple[float, float, bool]:
    """Return the smallest and largest finite value, and whether all values are whole numbers."""
    if values.dtype.kind in "iu":
        return float(values.min()), float(values.max()), True
    finite = np.isfinite(values)
    if not finite.all():
        values = values[finite]
        return (float(values.min()), float(values.max()), False) if len(values) else (0.0, 1.0, False)
    low, high = float(values.min()), float(values.max())
    # Image by image: most float images have fractions, so the first image decides.
    whole_numbers = all(bool((part == np.rint(part)).all()) for part in values)
    return low, high, whole_numbers


MAX_MEASURED_IMAGES = 2000
"""Largest number of training images used to compute mean and standard deviation."""


@dataclass(frozen=True)
class ImagePreprocessing:
    """Preprocessing that scales, augments (in training only) and normalizes; stored without the augmentation."""

    image_size: int
    channels: int
    classes: tuple[str, ...]
    low: float
    high: float
    """Raw float values that are mapped to 0 (`low`) and 1; 8-bit pixels are always divided by 255."""
    mean: tuple[float, ...]
    std: tuple[float, ...]
    """Statistics of the training images by channel, after scaling."""
    augment: Augment | None = None
    resize: Resize = DEFAULT_RESIZE
    """Rule for making an image square."""

    @property
    def scale(self) -> Range:
        """Raw values of black and white."""
        return self.low, self.high

    def __call__(self, inputs: Inputs, ids: Ids, epoch: int | None) -> Inputs:
        """Convert raw pixels (N, C, S, S) to network inputs (N, C, S, S) float32, on the device of the pixels."""
        (raw,) = inputs
        pixels = self.scaled(raw)
        if self.augment is not None and epoch is not None:
            pixels = self.augment(pixels, ids, epoch)
        mean, std = (onto(pixels.device, x).view(-1, 1, 1) for x in (self.mean, self.std))
        return ((pixels - mean).div_(std),)

    def scaled(self, raw: Tensor) -> Tensor:
        """Scale pixels to 0 to 1, float32."""
        if raw.dtype == torch.uint8:
            return raw.to(torch.float32).div_(255)
        return raw.to(torch.float32).sub(self.low).div_(self.high - self.low)

    def to_json(self) -> dict[str, object]:
        """Return the object as plain JSON values for `from_preprocessing`."""
        return {
            "kind": "images",
            "image_size": self.image_size,
            "channels": self.channels,
            "classes": list(self.classes),
            **self.resize.to_json(),
            "low": self.low,
            "high": self.high,
            "mean": list(self.mean),
            "std": list(self.std),
        }


def from_preprocessing(data: dict[str, Any]) -> ImagePreprocessing:
    """Rebuild the object from `ImagePreprocessing.to_json`, without augmentation."""
    return ImagePreprocessing(
        image_size=data["image_size"],
        channels=data["channels"],
        classes=tuple(data["classes"]),
        low=data["low"],
        high=data["high"],
        mean=tuple(data["mean"]),
        std=tuple(data["std"]),
        resize=resize.of(data),
    )


def channel_statistics(raw: Tensor, low: float, high: float) -> tuple[list[float], list[float]]:
    """Compute the mean and standard deviation of each channel in float64; 0 if all values are the same."""
    means, deviations = [], []
    for channel in range(raw.shape[1]):
        values = raw[:, channel].to(torch.float64).sub_(low).div_(high - low)
        means.append(float(values.mean()))
        deviation = float(values.std(correction=0))
        deviations.append(deviation if deviation > 1e-6 else 0.0)
    return means, deviations
