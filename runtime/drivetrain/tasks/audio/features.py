"""Turns spectrograms into the columns from which simple models learn: mean and deviation of each band."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from drivetrain.baselines.sample_features import SampleFeatures, read_prepared
from drivetrain.data.dataset import Dataset, Split
from drivetrain.data.stateless_random import Ids
from drivetrain.training.head_solver import Matrix


@dataclass
class SoundFeatures(SampleFeatures):
    """Computes the mean and the standard deviation over time of each mel band."""

    dataset: Dataset

    def read_linear(self, split: Split, ids: Ids) -> Matrix:
        """Compute two statistics of each band, shape (N, 2 * bands)."""
        rows = []
        for spectrograms in read_prepared(split, ids, self.dataset.prepare):
            bands = spectrograms[:, 0]
            rows.append(torch.cat([bands.mean(dim=2), bands.std(dim=2)], dim=1))
        return torch.cat(rows)
