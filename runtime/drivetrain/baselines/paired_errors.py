"""Estimates how much of the difference between a network and a simple model is chance, from the same samples of both.

The method is the jackknife over groups: the samples are divided into 20 groups, and the difference of a metric is
computed without each of them. It needs no formula for the metric, and samples that both predict right or wrong do not
increase the error.
P. S. Kott (2001), "The delete-a-group jackknife", Journal of Official Statistics 17(4).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from drivetrain.data.dataset import Head, Preprocessing, Split
from drivetrain.data.stateless_random import Ids
from drivetrain.models import forward
from drivetrain.training.evaluation.metrics import MetricAccumulator
from drivetrain.training.losses import Objective

MAX_SAMPLES, MAX_OUTPUTS = 2_000, 100_000
"""Largest number of compared samples, and of their outputs; the error of more samples follows by the square root."""
FIRST_SAMPLES = 40
"""Number of samples before the first check of the time."""
GROUPS = 20
QUANTILE = 2.09
"""97.5 % of Student's distribution with 19 degrees of freedom: the interval contains the true difference in 95 % of cases."""
LEAST_DIFFERING = 4
"""Smallest number of samples that are assumed to differ in their classes: from fewer, the groups do not show how many differ
among all samples.
"""


@dataclass(frozen=True)
class NetworkOutputs:
    """A network's outputs for some samples of a split."""

    ids: Ids
    """Sample ids, in the order of the split."""
    outputs: Mapping[str, Tensor]
    """Outputs by head, (N, outputs)."""
    has_neighbors: bool = False
    """Whether adjacent samples are alike, as the windows of a series are; a group then consists of adjacent samples."""

    def list_groups(self) -> list[Tensor]:
        """List for each group a mask (N,) of all other samples."""
        positions = torch.arange(len(self.ids))
        if self.has_neighbors:
            groups = positions * GROUPS // len(self.ids)
        else:
            # Samples may be ordered by class, but each group should be a fair sample.
            groups = torch.from_numpy(np.random.default_rng(0).permutation(len(self.ids))) % GROUPS
        return [groups != group for group in range(GROUPS)]


def compute_network_outputs(
    network: nn.Module,
    heads: Mapping[str, Head],
    split: Split,
    prepare: Preprocessing,
    device: torch.device,
    seconds: float,
) -> NetworkOutputs | None:
    """Compute the network's outputs for random samples, as many as the time allows; None if they are too few."""
    count = min(MAX_SAMPLES, MAX_OUTPUTS // sum(head.outputs for head in heads.values()))
    order = np.random.default_rng(0).permutation(len(split)).astype(np.int64)[:count]
    end = time.monotonic() + seconds
    ids: list[Ids] = []
    batches: list[dict[str, Tensor]] = []
    for selection in (order[:FIRST_SAMPLES], order[FIRST_SAMPLES:]):
        if not len(selection) or (ids and time.monotonic() > end):
            break
        for batch_ids, outputs in forward.compute_outputs(network, heads, split, prepare, device, selection):
            ids.append(batch_ids)
            batches.append(outputs)
            if time.monotonic() > end:
                break
    if sum(map(len, ids)) < GROUPS:
        return None
    all_ids = np.concatenate(ids)
    sorting = all_ids.argsort()
    outputs = {}
    for name in heads:
        outputs[name] = torch.cat([batch[name] for batch in batches])[torch.from_numpy(sorting)]
    return NetworkOutputs(all_ids[sorting], outputs)


class PairedErrors:
    """Compares simple models with one network on the same samples."""

    def __init__(
        self, network: NetworkOutputs, split: Split, heads: Mapping[str, Head], objective: Objective, prefix: str
    ) -> None:
        self.ids, self.heads, self.objective, self.prefix = network.ids, heads, objective, prefix
        self.targets = {name: values[torch.from_numpy(network.ids)] for name, values in split.targets.items()}
        self.groups = network.list_groups()
        self.network_metrics = [self._compute_metrics(network.outputs, rows) for rows in self.groups]
        # The error shrinks with the square root of the number of samples.
        self.scale = (len(network.ids) / len(split)) ** 0.5

    def estimate_margins(self, model: Mapping[str, Tensor]) -> dict[str, float]:
        """Estimate half the width of the 95 % interval of the difference from the network on all samples, by metric.

        `model` contains the simple model's outputs (N, outputs) for the same samples, by head.
        """
        model_metrics = [self._compute_metrics(model, rows) for rows in self.groups]
        has_numbers = any(not head.classes for head in self.heads.values())
        least = 0.0 if has_numbers else LEAST_DIFFERING / len(self.ids)
        margins = {}
        for name in sorted(set.intersection(*map(set, [*self.network_metrics, *model_metrics]))):
            pairs = zip(self.network_metrics, model_metrics, strict=True)
            differences = np.array([network[name] - simple[name] for network, simple in pairs])
            error = float(np.sqrt((GROUPS - 1) / GROUPS * np.sum((differences - differences.mean()) ** 2)))
            if np.isfinite(error):
                margins[name] = self.scale * max(QUANTILE * error, least)
        return margins

    def _compute_metrics(self, outputs: Mapping[str, Tensor], rows: Tensor) -> dict[str, float]:
        """Compute the metrics of some rows, except a loss that is a sum and grows with their number."""
        accumulator = MetricAccumulator(self.heads, self.objective)
        targets = {name: values[rows] for name, values in self.targets.items()}
        accumulator.add({name: values[rows] for name, values in outputs.items()}, targets)
        is_summed = any(loss.is_summed for loss in self.objective.losses.values())
        metrics = accumulator.metrics(self.prefix)
        return {name: value for name, value in metrics.items() if not (is_summed and name.endswith("loss"))}
