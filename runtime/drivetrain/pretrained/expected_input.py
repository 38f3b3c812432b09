"""Describes the images that a pretrained network was trained on: size, channels, scale and cropping."""

from __future__ import annotations

from dataclasses import dataclass

from drivetrain.job.data import Fit

INTERPOLATIONS = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")
"""Names of Pillow's resampling filters, at the index of Pillow's number."""


@dataclass(frozen=True)
class ExpectedInput:
    """The form of images that the network was trained on."""

    size: int | None
    """Side of the square in pixels; None if the file `source` does not tell."""
    channels: int
    mean: tuple[float, ...] | None
    """For each channel, for pixels from 0 to 1; None, as `std`, if the file does not tell."""
    std: tuple[float, ...] | None
    fit: Fit | None = None
    """How an image becomes square; None if the file does not tell."""
    interpolation: str = "bilinear"
    """One of `INTERPOLATIONS`."""
    crop_share: float = 1.0
    """Share of each side that is kept around the center."""
    reverses_channels: bool = False
    """Whether the channels are in the order blue, green, red."""
    ignored: tuple[str, ...] = ()
    """Keys of the file, with their values, that have no effect here."""
    source: str = "its preprocessor_config.json"
    """The file in which this was read, in words for messages."""
