"""Estimates how much of the difference between a network and a simple model is chance, from the same samples of both.

By the jackknife over groups: the samples are divided into 20 random groups, and the difference of a metric is computed
without each of them. It needs no formula for a metric, and samples that both have right or wrong add nothing to it.
P. S. Kott (2001), "The delete-a-group jackknife", Journal of Official Statistics 17(4).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from drivetrain.data.dataset import Head, Preprocessing, Split, Targets
from drivetrain.data.stateless_random import Ids
from drivetrain.models import forward
from drivetrain.training.evaluation.metrics import MetricAccumulator
from drivetrain.training.losses import Objective

MAX_SAMPLES = 2_000
"""Samples whose outputs are compared; the error of more of them follows by the square root."""
GROUPS = 20
QUANTILE = 2.09
"""97.5 % of Student's distribution with 19 degrees of freedom: the interval contains the true difference in 95 % of cases."""


@dataclass(frozen=True)
class NetworkOutputs:
    """A network's outputs for some samples of a split, in random order."""

    ids: Ids
    outputs: Mapping[str, Tensor]
    """By head, (N, outputs)."""


def compute_network_outputs(
    network: nn.Module,
    heads: Mapping[str, Head],
    split: Split,
    prepare: Preprocessing,
    device: torch.device,
    seconds: float,
) -> NetworkOutputs | None:
    """Compute the network's outputs for a random selection of samples, as many as this time allows; None if too few."""
    order = np.random.default_rng(0).permutation(len(split)).astype(np.int64)[:MAX_SAMPLES]
    end = time.monotonic() + seconds
    ids: list[Ids] = []
    outputs: dict[str, list[Tensor]] = {name: [] for name in heads}
    for batch_ids, batch_outputs in forward.compute_outputs(network, heads, split, prepare, device, order):
        ids.append(batch_ids)
        for name in heads:
            outputs[name].append(batch_outputs[name])
        if time.monotonic() > end:
            break
    if sum(map(len, ids)) < GROUPS:
        return None
    return NetworkOutputs(np.concatenate(ids), {name: torch.cat(parts) for name, parts in outputs.items()})


def estimate_margins(
    network: NetworkOutputs,
    model: Mapping[str, Tensor],
    split: Split,
    heads: Mapping[str, Head],
    objective: Objective,
    prefix: str,
) -> dict[str, float]:
    """Estimate, by metric, half the width of the 95 % interval of the difference between both on all samples of the split.

    Args:
        network: the outputs of the network.
        model: by head, the simple model's outputs (N, outputs) for the same samples.
        split: the samples.
        heads: the heads by name.
        objective: the loss.
        prefix: prefix of the metrics' names.
    """
    targets = {name: values[torch.from_numpy(network.ids)] for name, values in split.targets.items()}
    group_of_sample = torch.arange(len(network.ids)) % GROUPS
    differences: dict[str, list[float]] = {}
    for group in range(GROUPS):
        rows = group_of_sample != group
        of_network, of_model = (
            _compute_metrics(outputs, targets, rows, heads, objective, prefix) for outputs in (network.outputs, model)
        )
        for name in of_network.keys() & of_model.keys():
            differences.setdefault(name, []).append(of_network[name] - of_model[name])
    scale = QUANTILE * ((GROUPS - 1) / GROUPS * len(network.ids) / len(split)) ** 0.5
    return {
        name: scale * float(np.sqrt(np.sum((np.array(values) - np.mean(values)) ** 2)))
        for name, values in sorted(differences.items())
        if len(values) == GROUPS and np.isfinite(values).all()
    }


def _compute_metrics(
    outputs: Mapping[str, Tensor],
    targets: Targets,
    rows: Tensor,
    heads: Mapping[str, Head],
    objective: Objective,
    prefix: str,
) -> dict[str, float]:
    tally = MetricAccumulator(heads, objective)
    tally.add(
        {name: values[rows] for name, values in outputs.items()},
        {name: values[rows] for name, values in targets.items()},
    )
    return tally.metrics(prefix)
