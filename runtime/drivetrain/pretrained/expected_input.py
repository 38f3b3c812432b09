"""The form of images that a pretrained network was trained on."""

from __future__ import annotations

from dataclasses import dataclass

from drivetrain.job.data import Fit

INTERPOLATIONS = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")
"""Names of Pillow's resampling filters; the index is Pillow's number of the filter."""


@dataclass(frozen=True)
class ExpectedInput:
    """The form of images that the network was trained on."""

    size: int | None
    """Side of the square in pixels; None if the file of `source` does not say."""
    channels: int
    mean: tuple[float, ...] | None
    """Per channel, for pixels from 0 to 1; None with `std` if the file does not say."""
    std: tuple[float, ...] | None
    fit: Fit | None = None
    """How an image becomes square; None if the file does not say."""
    interpolation: str = "bilinear"
    """One of nearest, lanczos, bilinear, bicubic, box, hamming."""
    crop_share: float = 1.0
    """Part of each side that is kept around the center."""
    reverses_channels: bool = False
    """Whether the network gets blue, green, red."""
    ignored: tuple[str, ...] = ()
    """Keys of the file, with their values, that change nothing here."""
    source: str = "its preprocessor_config.json"
    """The file that says so, as words for messages."""
