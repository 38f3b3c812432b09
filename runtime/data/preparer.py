"""Preparer: raw pixels to what the network sees. The same object serves training, validation and prediction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from runtime.data.dataset import Inputs
from runtime.draws import Ids

RESIZE = "short side to image_size, bilinear with antialias, then the centre square; transparency over white"


@dataclass(frozen=True)
class Preparer:
    """Scale, normalise, and in training augment. Everything but the augmentation is stored with the model.

    A pixel becomes (pixel - low) / (high - low), which augmentation sees, then (x - mean) / std by channel.
    """

    image_size: int
    channels: int
    classes: tuple[str, ...]
    dtype: str
    """Of the raw pixels: uint8 or float32."""
    low: float
    high: float
    """Raw values that become 0 and 1."""
    mean: tuple[float, ...]
    std: tuple[float, ...]
    """Per channel, of the training images, after scaling."""

    def __call__(self, inputs: Inputs, ids: Ids, epoch: int | None) -> Inputs:
        """Raw pixels (N, C, S, S) to network inputs (N, C, S, S) float32."""
        (raw,) = inputs
        return (self.normalised(self.scaled(raw)),)

    def scaled(self, raw: Tensor) -> Tensor:
        """Pixels within 0 and 1, float32."""
        return raw.to(torch.float32).sub(self.low).div_(self.high - self.low)

    def normalised(self, pixels: Tensor) -> Tensor:
        """(x - mean) / std by channel."""
        mean = torch.tensor(self.mean, device=pixels.device).view(-1, 1, 1)
        std = torch.tensor(self.std, device=pixels.device).view(-1, 1, 1)
        return (pixels - mean).div_(std)

    def to_json(self) -> dict[str, Any]:
        """Plain data from which `from_preprocessing` makes the same preparer."""
        return {
            "kind": "images", "image_size": self.image_size, "channels": self.channels,
            "classes": list(self.classes), "resize": RESIZE, "dtype": self.dtype, "low": self.low, "high": self.high,
            "mean": list(self.mean), "std": list(self.std),
        }  # fmt: skip


def from_preprocessing(data: dict[str, Any]) -> Preparer:
    """The preparer that `Preparer.to_json` described, without augmentation."""
    return Preparer(
        image_size=data["image_size"], channels=data["channels"], classes=tuple(data["classes"]), dtype=data["dtype"],
        low=data["low"], high=data["high"], mean=tuple(data["mean"]), std=tuple(data["std"]),
    )  # fmt: skip
