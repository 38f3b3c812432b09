"""The validation samples of a run, with methods that measure its network on them or on changed copies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from drivetrain.data.dataset import Dataset, Head, Split
from drivetrain.inference.predictions import Batches
from drivetrain.models import forward
from drivetrain.models.saved_model import SavedModel
from drivetrain.training.evaluation.metrics import MetricAccumulator
from drivetrain.training.losses import Objective


@dataclass(frozen=True)
class ValidationSamples:
    """The data of a run with its trained network."""

    trained: SavedModel
    data: Dataset
    heads: Mapping[str, Head]
    """With the temperature and thresholds of `predict`, which the data's own heads do not have."""
    objective: Objective
    metric: str
    """The metric that chose the weights."""
    seed: int
    """Of the run."""
    device: torch.device

    def make_accumulator(self) -> MetricAccumulator:
        """Return the accumulator for the metrics of a pass."""
        return MetricAccumulator(self.heads, self.objective)

    def compute_outputs(self, split: Split) -> Batches:
        """Compute the outputs for all samples of a split."""
        return forward.compute_outputs(self.trained.network, self.heads, split, self.data.prepare, self.device)

    def measure(self, split: Split) -> float:
        """Measure the metric that chose the weights, on a split; NaN if these samples have none."""
        accumulator = self.make_accumulator()
        for ids, outputs in self.compute_outputs(split):
            index = torch.from_numpy(ids)
            accumulator.add(outputs, {name: values[index] for name, values in split.targets.items()})
        return accumulator.metrics().get(self.metric, float("nan"))
