"""How the pixels of a file become the square that the network sees; stored with the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from runtime.job.data import Fit

GROUNDS = {"white": 255, "black": 0, "gray": 128}
"""Colors that transparent pixels can lie on, the usual one first."""
RULES = 1
"""0: a MinIsWhite file of 16 bits was not inverted, and one without a visible pixel was white. 1: inverted; its colors."""


@dataclass(frozen=True)
class Resize:
    """Values, ground, form, interpolation and crop."""

    fit: Fit = "crop"
    interpolation: str = "bilinear"
    """As in Pillow: bilinear or bicubic, with antialiasing; with some pretrained networks another one."""
    share: float = 1.0
    """Part of each side that is kept around the center; all of it where an image is padded."""
    range_16_bit: tuple[float, float] | None = None
    """Values of gray 16-bit files that become black and white, if such files were among the training images."""
    ground: str = "white"
    """What transparent pixels lie on: a key of `GROUNDS`."""
    rules: int = RULES
    """By which rules files are read; models of older versions keep theirs."""

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
        smooth = self.interpolation if self.interpolation == "nearest" else f"{self.interpolation} with antialias"
        return f"upright, transparency over {self.ground}, {square}, {smooth}"

    def to_json(self) -> dict[str, object]:
        """Plain JSON values from which `of` rebuilds it."""
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
        # A model of an older version must stay as it was written, to be compared with what it was.
        return values | ({"rules": self.rules} if self.rules else {})


USUAL = Resize()


def of(preprocessing: Mapping[str, Any]) -> Resize:
    """As stored with a model; models of older versions lack some of the keys."""
    return Resize(
        preprocessing.get("fit", "crop"),
        preprocessing.get("interpolation", "bilinear"),
        preprocessing.get("crop_share", 1.0),
        tuple(preprocessing["range_16_bit"]) if "range_16_bit" in preprocessing else None,
        preprocessing.get("ground", "white"),
        preprocessing.get("rules", 0),
    )
