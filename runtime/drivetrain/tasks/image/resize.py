"""Rule for making a square of the pixels of a file for the network; its size, if the job does not set it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from drivetrain.job.data import Fit

GROUNDS = {"white": 255, "black": 0, "gray": 128}
"""Possible background colors of transparent pixels, the usual one first."""
MIN_SIZE, MAX_SIZE, SIZE_STEP = 16, 224, 16
"""Limits and multiple of an automatic size for image files, in pixels."""


@dataclass(frozen=True)
class Resize:
    """Rule for making a square of the pixels of a file: range of values, ground, fit, interpolation and crop."""

    fit: Fit = "crop"
    interpolation: str = "bilinear"
    """Interpolation as in Pillow: bilinear or bicubic, with antialiasing; some pretrained networks use another one."""
    share: float = 1.0
    """Share of each side that is kept around the center; 1 if images are padded."""
    range_16_bit: tuple[float, float] | None = None
    """Values of gray 16-bit files that become black and white; None without such files among the training images."""
    ground: str = "white"
    """Background of transparent pixels: a key of `GROUNDS`."""

    def kept(self, width: float, height: float) -> tuple[float, float]:
        """Compute width and height of the part of an image that is kept."""
        if self.fit == "crop":
            width = height = min(width, height)
        return width * self.share, height * self.share

    def sentence(self) -> str:
        """Return the rule in words."""
        part = "" if self.share == 1 else f"{self.share:.1%} of "
        square = {
            "crop": f"centre square of {part}the short side",
            "pad": "long side fits, black bars beside the short one",
            "squash": f"{part}each side by itself",
        }[self.fit]
        smooth = self.interpolation if self.interpolation == "nearest" else f"{self.interpolation} with antialias"
        return f"upright, transparency over {self.ground}, {square}, {smooth}"

    def to_json(self) -> dict[str, object]:
        """Return the rule as plain JSON values for `of`."""
        values: dict[str, object] = {
            "fit": self.fit,
            "interpolation": self.interpolation,
            "crop_share": self.share,
            "resize": self.sentence(),
        }
        if self.range_16_bit:
            values["range_16_bit"] = list(self.range_16_bit)
        if self.ground != next(iter(GROUNDS)):
            values["ground"] = self.ground
        return values


DEFAULT_RESIZE = Resize()
"""Rule for image jobs without settings."""


def of(preprocessing: Mapping[str, Any]) -> Resize:
    """Rebuild the rule stored with a model."""
    return Resize(
        preprocessing["fit"],
        preprocessing["interpolation"],
        preprocessing["crop_share"],
        tuple(preprocessing["range_16_bit"]) if "range_16_bit" in preprocessing else None,
        preprocessing.get("ground", "white"),
    )


def pad_sides(sides: tuple[float, float], size: int) -> tuple[int, int]:
    """Return height and width of an image after its longer side is resized to `size`."""
    scale = size / max(sides)
    return max(1, round(sides[0] * scale)), max(1, round(sides[1] * scale))


def choose_size(requested: int | str, short_sides: npt.NDArray[np.int64], exact: bool) -> tuple[int, str]:
    """Choose the side of the square; returns it and the reason.

    Args:
        requested: `data.image_size` of the job.
        short_sides: shorter side of each image, in pixels.
        exact: whether all images have one size, as in an array, which can be kept.
    """
    if isinstance(requested, int):
        return requested, "set in the job file"
    middle = float(np.median(short_sides))
    if exact:
        return int(middle), "the size of the arrays"
    size = int(np.clip(round(middle / SIZE_STEP) * SIZE_STEP, MIN_SIZE, MAX_SIZE))
    return size, f"the median short side is {middle:g} pixels; rounded to a multiple of {SIZE_STEP}, at most {MAX_SIZE}"
