"""The form of images that a pretrained network was trained on."""

from __future__ import annotations

from dataclasses import dataclass

from runtime.job.data import Fit

INTERPOLATIONS = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")
"""By Pillow's numbers."""


@dataclass(frozen=True)
class Expected:
    """The form of images that the network was trained on."""

    size: int | None
    """Side of the square in pixels; None if the folder does not say."""
    channels: int
    mean: tuple[float, ...] | None
    """Per channel, for pixels from 0 to 1; None with `std` if the folder does not say."""
    std: tuple[float, ...] | None
    fit: Fit | None = None
    """How an image becomes square; None if the folder does not say."""
    interpolation: str = "bilinear"
    """One of nearest, lanczos, bilinear, bicubic, box, hamming."""
    share: float = 1.0
    """Part of each side that is kept around the center."""
    reverses_channels: bool = False
    """Whether the network gets blue, green, red."""
    ignored: tuple[str, ...] = ()
    """Keys of the file, with their values, that change nothing here."""
    source: str = "its preprocessor_config.json"
    """Where it is written, in words."""
