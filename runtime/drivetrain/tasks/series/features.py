"""Turns windows into the columns from which simple models learn.

They are the mean, deviation, extremes, first and last value, slope and mean step of each channel.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from drivetrain.baselines.sample_features import SampleFeatures, read_prepared
from drivetrain.data.dataset import Dataset, Split
from drivetrain.data.stateless_random import Ids
from drivetrain.models.networks.cnn_lstm import compute_statistics
from drivetrain.training.head_solver import Matrix


@dataclass
class SeriesFeatures(SampleFeatures):
    """Computes simple statistics of windows (N, time, channels)."""

    dataset: Dataset

    def read_linear(self, split: Split, ids: Ids) -> Matrix:
        """Compute eight statistics of each channel, shape (N, 8 * channels)."""
        return torch.cat([compute_statistics(windows) for windows in read_prepared(split, ids, self.dataset.prepare)])
