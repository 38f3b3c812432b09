"""Computes losses as per-sample terms and weights, so that losses of micro-batches add up exactly to the batch's loss.

    loss = sum over heads of head weight * (sum of terms / sum of sample weights)

Both sums are over the samples of the optimizer's whole batch that have a label for the head. A term includes the weight
of the sample's class; for soft targets, classes are weighted by their probabilities, as in torch's CrossEntropyLoss.
A sample has the weight of its class, or the mean of the class weights by its probabilities. torch does the same for
class indices; for soft targets it divides by the number of samples instead.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from drivetrain.data.custom.user_loss import CustomTerms
from drivetrain.data.dataset import NO_LABEL, Batch, Head, Targets, onto
from drivetrain.distributed.batch_sharding import BatchShare
from drivetrain.distributed.ranks import Ranks
from drivetrain.job.train import BinaryCrossEntropy, CrossEntropy, Focal, Huber, MeanSquaredError
from drivetrain.models.loss_function import Denominators

MAX_EXACT_FLOAT32 = 1 << 24
"""float32 represents every whole number up to this one."""
Spec = CrossEntropy | Focal | BinaryCrossEntropy | MeanSquaredError | Huber
"""Loss in the spec."""
NO_TARGETS = torch.empty(0, dtype=torch.int64)
Terms = Callable[..., Tensor]
"""Function of (outputs (N, C), targets, class weights (C,) if there are any) that returns one term per sample (N,)."""


@dataclass(frozen=True)
class HeadLoss:
    """The loss of one head."""

    terms: Terms
    class_weights: Tensor | None
    """Shape (C,); None for equal weights and for regression."""
    several: bool = False
    """Whether a sample can have several classes. Class weights then apply only to the positive labels, as `pos_weight`
    in torch's BCEWithLogitsLoss, and every sample has the weight 1.
    """
    partial: bool = False
    """Whether some samples have no label; they have the class NO_LABEL and the weight 0."""
    custom: CustomTerms | None = None
    """The user's loss, if `terms` are its terms."""

    def weighted_terms(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the weighted term of each sample, 0 without a label; shape (N,).

        For an ensemble, with outputs (N, members, C), it is the mean of the members' terms.
        """
        if outputs.ndim == 3 and not self.custom:
            members = outputs.shape[1]
            terms = self.weighted_terms(outputs.flatten(0, 1), targets.repeat_interleave(members, 0))
            return terms.view(-1, members).mean(1)
        weights = () if self.class_weights is None else (onto(outputs.device, self.class_weights).to(outputs.dtype),)
        if not self.partial:
            return self.terms(outputs, targets, *weights)
        return torch.where(targets == NO_LABEL, 0.0, self.terms(outputs, targets.clamp_min(0), *weights))

    @property
    def is_unweighted(self) -> bool:
        """Whether each sample has the weight 1."""
        if self.custom:
            division = self.custom.division
            return division.count is None and not division.summed
        return not self.partial and (self.class_weights is None or self.several)

    @property
    def is_summed(self) -> bool:
        """Whether the loss is a sum over the samples, which is not divided by weights."""
        return self.custom is not None and self.custom.division.summed

    def weights(self, targets: Tensor) -> Tensor:
        """Return the weight of each sample, 0 without a label, shape (N,); for a user's loss, the sum of weights."""
        if self.custom:
            return self.custom.weights(targets)
        if self.is_unweighted:
            return torch.ones(len(targets), dtype=torch.float32, device=targets.device)
        if self.partial:
            class_weights = torch.ones(1, device=targets.device) if self.class_weights is None else self.class_weights
            by_sample = onto(targets.device, class_weights)[targets.clamp(0, len(class_weights) - 1)]
            return torch.where(targets == NO_LABEL, 0.0, by_sample)
        assert self.class_weights is not None
        class_weights = onto(targets.device, self.class_weights)
        # In float64 the sum of weights does not depend on how the batch is split.
        return targets.double() @ class_weights.double() if targets.ndim == 2 else class_weights[targets]


class Objective:
    """The loss of all heads."""

    def __init__(self, heads: Mapping[str, Head], losses: Mapping[str, HeadLoss]) -> None:
        self.heads, self.losses = heads, dict(losses)

    def move(self, device: torch.device) -> None:
        """Move the class weights to a device."""
        for name, loss in self.losses.items():
            if loss.class_weights is not None:
                self.losses[name] = replace(loss, class_weights=onto(device, loss.class_weights))

    def denominators(self, targets: Targets) -> dict[str, Tensor]:
        """Sum the sample weights by head, 1 for a loss that is a sum; `targets` contains the whole batch."""
        sums = {}
        for name, loss in self.losses.items():
            if loss.is_summed:
                sums[name] = torch.ones((), dtype=torch.float64, device=targets[name].device)
            else:
                sums[name] = loss.weights(targets[name]).sum(dtype=torch.float64)
        return sums

    def start_denominators(
        self, batch: Batch | None, share: BatchShare, ranks: Ranks, device: torch.device
    ) -> Denominators:
        """Start the sum of sample weights over all processes; the forward pass does not wait for it."""
        # The loss is divided by the number of samples, which is known without asking the other processes.
        if share.samples is not None and all(loss.is_unweighted for loss in self.losses.values()):
            exact_dtype = torch.float32 if share.samples <= MAX_EXACT_FLOAT32 else torch.float64
            # Created on the device: a copy from the host would wait for the device.
            by_head = dict.fromkeys(self.losses, torch.full((), share.samples, dtype=exact_dtype, device=device))
            return lambda: by_head
        local_sums = dict.fromkeys(self.losses, torch.zeros((), dtype=torch.float64))
        if batch is not None:
            local_sums = self.denominators(batch.targets)
        # Denominators of a summed loss must add up to 1 over all processes.
        if share.weight != 1:
            for name, loss in self.losses.items():
                if loss.is_summed:
                    local_sums[name] = local_sums[name] * share.weight
        wait_for_sums = ranks.start_sums(list(local_sums.values()))
        return lambda: dict(zip(local_sums, wait_for_sums(), strict=True))

    @property
    def split_obstacle(self) -> str:
        """Reason why the loss of a batch cannot be combined from the losses of its micro-batches; empty if it can."""
        return next((loss.custom.division.obstacle for loss in self.losses.values() if loss.custom), "")

    def compute(self, outputs: Any, batch: Batch, denominators: Mapping[str, Tensor]) -> Tensor:
        """Compute the contribution of a micro-batch to the loss of its batch; a scalar."""
        return self(outputs, batch.targets, denominators)

    def __call__(
        self, outputs: Tensor | Mapping[str, Tensor], targets: Targets, denominators: Mapping[str, Tensor]
    ) -> Tensor:
        """Return the contribution of these samples to the loss; a scalar.

        Args:
            outputs: (N, C) for a single head, (N, members, C) for an ensemble, or a mapping by head name.
            targets: targets of the same samples.
            denominators: result of `denominators` for the whole batch.
        """
        total_loss = None
        for name, loss in self.losses.items():
            head_outputs = outputs[name] if isinstance(outputs, Mapping) else outputs
            denominator = denominators[name]
            if loss.partial or loss.custom:  # without a label in the batch, the head contributes 0 / 1, not 0 / 0
                denominator = torch.where(denominator > 0, denominator, 1.0)
            # Half precision has too few digits for a sum over the batch.
            float_outputs = head_outputs if head_outputs.dtype == torch.float64 else head_outputs.float()
            terms = loss.weighted_terms(float_outputs, targets[name]).sum()
            weight = self.heads[name].weight
            head_loss = (terms if weight == 1 else weight * terms) / denominator.to(float_outputs.dtype)
            total_loss = head_loss if total_loss is None else total_loss + head_loss
        assert total_loss is not None
        return total_loss


def build_terms(spec: Spec) -> Terms:
    """Build the per-sample terms of a loss in the spec."""
    match spec:
        case CrossEntropy():
            return functools.partial(_cross_entropy, smoothing=spec.label_smoothing)
        case Focal():
            return functools.partial(_focal_terms, spec=spec)
        case BinaryCrossEntropy():
            return functools.partial(_binary_cross_entropy, smoothing=spec.label_smoothing)
        case MeanSquaredError():
            return lambda outputs, targets: F.mse_loss(outputs, targets, reduction="none").mean(dim=1)
        case Huber():
            huber = functools.partial(F.huber_loss, reduction="none", delta=spec.delta)
            return lambda outputs, targets: huber(outputs, targets).mean(dim=1)


def to_probabilities(targets: Tensor, classes: int, dtype: torch.dtype) -> Tensor:
    """Return class indices (N,) or probabilities (N, C) as probabilities (N, C)."""
    return F.one_hot(targets, classes).to(dtype) if targets.ndim == 1 else targets.to(dtype)


def _cross_entropy(outputs: Tensor, targets: Tensor, weights: Tensor | None = None, *, smoothing: float) -> Tensor:
    if targets.ndim == 2:
        targets = targets.to(outputs.dtype)
    return F.cross_entropy(outputs, targets, weights, reduction="none", label_smoothing=smoothing)


def _focal_terms(outputs: Tensor, targets: Tensor, weights: Tensor | None = None, *, spec: Focal) -> Tensor:
    """Compute the focal loss (Lin et al. 2017); for soft targets, its expectation over classes."""
    classes = outputs.shape[1]
    expected = to_probabilities(targets, classes, outputs.dtype)
    expected = expected * (1 - spec.label_smoothing) + spec.label_smoothing / classes
    log_p = F.log_softmax(outputs, dim=1)
    # With gamma below 1 the gradient at a remainder of 0 is infinite, and infinity times 0 would be NaN.
    remainder = (1 - log_p.exp()).clamp_min(torch.finfo(outputs.dtype).tiny)
    terms = -expected * remainder**spec.gamma * log_p
    if spec.alpha is not None:
        terms = terms * onto(outputs.device, torch.tensor([1 - spec.alpha, spec.alpha], dtype=outputs.dtype))
    return (terms if weights is None else terms * weights).sum(dim=1)


def _binary_cross_entropy(
    outputs: Tensor, targets: Tensor, weights: Tensor | None = None, *, smoothing: float
) -> Tensor:
    expected = to_probabilities(targets, outputs.shape[1], outputs.dtype) * (1 - smoothing) + smoothing / 2
    return F.binary_cross_entropy_with_logits(outputs, expected, reduction="none", pos_weight=weights).mean(dim=1)


def compute_class_weights(requested: str | Mapping[str, float], head: Head, targets: Tensor) -> Tensor | None:
    """Compute the weights of a head's classes, shape (C,); None for equal weights and for regression.

    Args:
        requested: `none`, `balanced`, or weights by class, 1 for classes that are not named.
        head: output of the network.
        targets: targets of all training samples.
    """
    if requested == "none" or not head.classes:
        return None
    if isinstance(requested, Mapping):
        return torch.tensor([requested.get(name, 1.0) for name in head.classes], dtype=torch.float32)
    return balance_labels(targets) if head.several else balance_classes(targets, len(head.classes))


def balance_labels(targets: Tensor) -> Tensor:
    """Compute label weights of multi-label targets (N, C): samples without / with the label; 1 if either is 0."""
    positives = (targets > 0.5).sum(dim=0).double()
    negatives = len(targets) - positives
    return torch.where((positives > 0) & (negatives > 0), negatives / positives.clamp_min(1), 1.0).float()


def balance_classes(targets: Tensor, classes: int) -> Tensor:
    """Compute class weights, shape (C,): samples / (classes * samples of the class); 0 for a class without samples."""
    labels = targets[targets != NO_LABEL]
    counts = torch.bincount(labels, minlength=classes).double()
    weights = len(labels) / (classes * counts)
    return torch.where(counts > 0, weights, torch.zeros_like(weights)).float()


def need_targets(heads: Mapping[str, Head], weighting: str | Mapping[str, float]) -> bool:
    """Return whether `build_objective` needs the training targets for balanced class weights."""
    return any((head.class_weights or weighting) == "balanced" for head in heads.values())


def build_objective(
    spec: Spec | None,
    heads: Mapping[str, Head],
    targets: Targets,
    weighting: str | Mapping[str, float],
    custom: CustomTerms | None = None,
) -> Objective:
    """Build the objective of a job.

    Args:
        spec: loss of the job; None for cross entropy, BCE or MSE, by kind of head.
        heads: outputs of the network.
        targets: all training targets, for class weights; may be empty unless `need_targets`.
        weighting: `none`, `balanced`, or weights by class, for heads without `class_weights`.
        custom: terms of the user's loss, which replaces `spec`.
    """
    if custom is not None:
        return Objective(heads, {name: HeadLoss(custom, None, custom=custom) for name in heads})
    losses = {}
    for name, head in heads.items():
        default = BinaryCrossEntropy(name="bce") if head.several else CrossEntropy(name="cross-entropy")
        head_spec = spec or (default if head.classes else MeanSquaredError(name="mse"))
        if head.label_smoothing is not None:
            head_spec = head_spec.model_copy(update={"label_smoothing": head.label_smoothing})
        class_weights = compute_class_weights(head.class_weights or weighting, head, targets.get(name, NO_TARGETS))
        losses[name] = HeadLoss(build_terms(head_spec), class_weights, head.several, head.partial)
    return Objective(heads, losses)
