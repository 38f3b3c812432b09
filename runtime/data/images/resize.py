"""How an image becomes the square that the network sees; stored with the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from runtime.job.data import Fit


@dataclass(frozen=True)
class Resize:
    """Form, interpolation and crop."""

    fit: Fit = "crop"
    interpolation: str = "bilinear"
    """bilinear or bicubic, with antialiasing."""
    share: float = 1.0
    """Part of each side that is kept around the center; all of it where an image is padded."""

    def kept(self, width: float, height: float) -> tuple[float, float]:
        """Width and height of the part of an image that is kept."""
        if self.fit == "crop":
            width = height = min(width, height)
        return width * self.share, height * self.share

    def sentence(self) -> str:
        """The rule in words."""
        part = "" if self.share == 1 else f"{self.share:.1%} of "
        square = {
            "crop": f"centre square of {part}the short side",
            "pad": "long side fits, black bars beside the short one",
            "squash": f"{part}each side by itself",
        }[self.fit]
        return f"upright, transparency over white, {square}, {self.interpolation} with antialias"

    def to_json(self) -> dict[str, object]:
        """Plain JSON values from which `of` rebuilds it."""
        return {
            "fit": self.fit,
            "interpolation": self.interpolation,
            "crop_share": self.share,
            "resize": self.sentence(),
        }


USUAL = Resize()


def of(preprocessing: Mapping[str, Any]) -> Resize:
    """As stored with a model; models of older versions lack some of the keys."""
    return Resize(
        preprocessing.get("fit", "crop"),
        preprocessing.get("interpolation", "bilinear"),
        preprocessing.get("crop_share", 1.0),
    )
