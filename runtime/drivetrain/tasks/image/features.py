"""Turns images into the columns from which simple models learn: pixels, scaled down to 16 x 16."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from drivetrain.baselines.sample_features import SampleFeatures, read_prepared
from drivetrain.data.dataset import Dataset, Split
from drivetrain.data.stateless_random import Ids
from drivetrain.training.head_solver import Matrix

PICTURE_SIDE = 16
"""Side in pixels; a linear model gains nothing from more pixels, and takes longer."""


@dataclass
class ImageFeatures(SampleFeatures):
    """Reads small versions of images (N, channels, height, width)."""

    dataset: Dataset
    penalty = 10.0
    suits_trees = False
    _rows: dict[int, dict[int, Tensor]] = field(init=False, default_factory=dict)
    """Rows by split and sample, cached because decoding takes most of the time and later fits read the same samples."""

    def read_linear(self, split: Split, ids: Ids) -> Matrix:
        """Read the pixels of all channels, scaled down by averaging."""
        rows = self._rows.setdefault(id(split), {})
        missing = np.array([sample for sample in ids.tolist() if sample not in rows], np.int64)
        if len(missing):
            small = torch.cat([_shrink(images) for images in read_prepared(split, missing, self.dataset.prepare)])
            rows |= zip(missing.tolist(), small, strict=True)
        return torch.stack([rows[sample] for sample in ids.tolist()])


def _shrink(images: Tensor) -> Tensor:
    height, width = (min(side, PICTURE_SIDE) for side in images.shape[-2:])
    return F.adaptive_avg_pool2d(images, (height, width)).flatten(1)
