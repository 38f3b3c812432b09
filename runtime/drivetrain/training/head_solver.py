"""Finds the weights of a linear head on fixed features that have the smallest loss.

The loss of a linear head is a convex function of its weights, so it has one smallest value, which L-BFGS reaches (Liu &
Nocedal 1989) and a few epochs of steps do not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from drivetrain.data.dataset import NO_LABEL
from drivetrain.training.losses import HeadLoss

PENALTIES = (10_000.0, 3000.0, 1000.0, 300.0, 100.0, 30.0, 10.0, 3.0, 1.0, 0.3, 0.1)
"""Factors of half the squared weights of standardized features, beside the sum of the losses: 1 / C of scikit-learn."""
ROUNDING_SHARE = 1e-6
"""Deviations smaller than this part of the feature's largest value, or of a usual feature's deviation, say nothing."""
MAX_WORSE_IN_A_ROW = 2
"""Penalties with a larger validation loss than the best one after which smaller ones are not tried."""
MAX_ITERATIONS = 300
"""Of L-BFGS for each penalty, which starts from the solution of the one before."""
CHUNK_VALUES = 1 << 24
"""Feature values whose outputs and gradients are computed at once."""


@dataclass(frozen=True)
class HeadFeatures:
    """What goes into a head, and what should come out."""

    features: Tensor
    """(N, width) float32."""
    targets: Tensor
    """(N,) classes, or (N, outputs)."""


@dataclass(frozen=True)
class Solution:
    """A solved head."""

    weight: Tensor
    """(outputs, width), for the features as they were given."""
    bias: Tensor | None
    """(outputs,)."""
    penalty: float
    training_loss: float
    validation_loss: float
    tried_penalties: int = 0
    """Number of penalties."""


def solve_head(
    training: HeadFeatures, held_out: HeadFeatures, loss: HeadLoss, outputs: int, *, has_bias: bool = True
) -> Solution:
    """The weights with the smallest loss plus penalty; of the penalties, the one with the smallest validation loss.

    Args:
        training: what is fitted.
        held_out: what the penalty is chosen by.
        loss: of the head, with its class weights.
        outputs: of the head.
        has_bias: whether the layer has a bias; without one, features are scaled only.
    """
    training, held_out = _drop_unlabelled(training, loss), _drop_unlabelled(held_out, loss)
    # Features of one scale: the penalty treats all alike, and L-BFGS needs fewer iterations. Without a bias nothing can
    # make up for a shift.
    scale = _measure_scale(training.features)
    mean = training.features.mean(dim=0) if has_bias else torch.zeros_like(scale)
    fitted, validated = _standardize(training, mean, scale), _standardize(held_out, mean, scale)
    weight = torch.zeros(outputs, len(scale), device=scale.device, requires_grad=True)
    bias = torch.zeros(outputs, device=scale.device, requires_grad=has_bias)
    best: Solution | None = None
    worse_in_a_row = tried = 0
    # From the strongest penalty to the weakest, so that each solution is near the one before.
    for penalty in PENALTIES:
        training_loss = _minimize(fitted, loss, weight, bias, penalty)
        with torch.no_grad():
            validation_loss = sum(float(part) for part in _loss_parts(validated, loss, weight, bias))
        tried += 1
        worse_in_a_row += 1
        # Without labelled validation samples the strongest penalty is kept.
        if best is None or validation_loss < best.validation_loss:
            original_weight = weight.detach() / scale
            original_bias = bias.detach() - original_weight @ mean if has_bias else None
            best, worse_in_a_row = Solution(original_weight, original_bias, penalty, training_loss, validation_loss), 0
        if worse_in_a_row == MAX_WORSE_IN_A_ROW:
            break
    assert best is not None
    return replace(best, tried_penalties=tried)


def _measure_scale(features: Tensor) -> Tensor:
    """The standard deviation of each feature, (width,); infinite where it is nothing but rounding.

    Networks have units that are the same for every sample up to the last digit. Scaled up to 1, that noise would get
    weights of 1e30, and with them gradients that are not finite.
    """
    scale = features.std(dim=0, correction=0)
    noise = ROUNDING_SHARE * torch.maximum(scale.square().mean().sqrt(), features.abs().amax(dim=0))
    return torch.where(scale > noise, scale, torch.inf)


def _drop_unlabelled(samples: HeadFeatures, loss: HeadLoss) -> HeadFeatures:
    """The samples that have a class."""
    if not loss.partial or samples.targets.ndim > 1:
        return samples
    labelled = samples.targets != NO_LABEL
    return HeadFeatures(samples.features[labelled], samples.targets[labelled])


def _standardize(samples: HeadFeatures, mean: Tensor, scale: Tensor) -> HeadFeatures:
    return HeadFeatures((samples.features - mean) / scale, samples.targets)


def _minimize(samples: HeadFeatures, loss: HeadLoss, weight: Tensor, bias: Tensor, penalty: float) -> float:
    """Take weight and bias to the smallest loss plus penalty, in place; returns the loss alone."""
    parameters = [parameter for parameter in (weight, bias) if parameter.requires_grad]
    optimizer = torch.optim.LBFGS(
        parameters,
        max_iter=MAX_ITERATIONS,
        history_size=20,
        tolerance_grad=1e-5,
        tolerance_change=1e-8,
        line_search_fn="strong_wolfe",
    )
    factor = penalty / (2 * max(1, len(samples.features)))

    def compute_loss() -> float:
        optimizer.zero_grad()
        penalized = factor * weight.square().sum()
        penalized.backward()  # type: ignore[no-untyped-call]
        total = float(penalized.detach())
        # Part by part, so that the outputs of all samples never lie in memory together.
        for part in _loss_parts(samples, loss, weight, bias):
            part.backward()  # type: ignore[no-untyped-call]
            total += float(part.detach())
        return total

    optimizer.step(compute_loss)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        return sum(float(part) for part in _loss_parts(samples, loss, weight, bias))


def _loss_parts(samples: HeadFeatures, loss: HeadLoss, weight: Tensor, bias: Tensor) -> Iterator[Tensor]:
    """The mean loss of the samples as summands, each a scalar."""
    total = loss.weights(samples.targets).sum(dtype=torch.float64).clamp_min(torch.finfo(torch.float32).tiny)
    rows = max(1, CHUNK_VALUES // max(1, samples.features.shape[1]))
    for start in range(0, len(samples.features), rows):
        outputs = samples.features[start : start + rows] @ weight.T + bias
        yield loss.weighted_terms(outputs, samples.targets[start : start + rows]).sum() / total
