"""Trains a step of a user's own loop: combines the loss of micro-batches, and the gradients of several batches."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from drivetrain.data.custom.user_loss import TOLERANCE, Count, LossRule, TorchMean, sum_counts, try_division
from drivetrain.data.dataset import Batch
from drivetrain.distributed.batch_sharding import BatchShare
from drivetrain.distributed.ranks import Ranks
from drivetrain.errors import SpecError
from drivetrain.models.frozen_split import evaluating
from drivetrain.models.loss_function import Denominators
from drivetrain.training.user_batches import UserBatches

TRIAL_SAMPLES = 32
"""Number of samples in the trial that finds out how a loss is averaged."""


@dataclass
class LoopLoss:
    """The objective of a step: the loss of its batch, divided by the number of batches per update.

    A trial with the first batch that has to be split shows how the losses of its micro-batches are combined.
    """

    user_batches: UserBatches
    batches_per_update: int
    weight_of: Count | None = None
    """The user's function for the weights of samples in the loss; None for equal weights."""
    current_batch: Batch | None = None
    division: LossRule | None = None

    def __post_init__(self) -> None:
        torch_mean = TorchMean.of(self.user_batches.loss)
        if self.weight_of is None and torch_mean:
            self.division = LossRule(torch_mean.weights)

    @property
    def split_obstacle(self) -> str:
        """Reason why the current batch cannot be split; empty if it can.

        Raises:
            SpecError: if the loss does not divide by `weight_of`.
        """
        if self.user_batches.whole:
            return self.user_batches.whole
        if self.division is None:
            self.division = self._try_division()
        return self.division.obstacle

    def _try_division(self) -> LossRule:
        assert self.current_batch is not None
        trial_size = min(TRIAL_SAMPLES, max(4, len(self.current_batch) // 2))
        trial_batch = self._mask_labels(self.current_batch.between(0, trial_size))
        model = self.user_batches.model

        def compute_loss(rows: slice) -> tuple[Tensor]:
            batch = trial_batch.between(rows.start, rows.stop)
            return (self.user_batches.mean_loss(self.user_batches.forward(*batch.inputs), batch.targets),)

        def get_weighted_values(rows: slice) -> Any:
            batch = trial_batch.between(rows.start, rows.stop)
            return self.user_batches.weighted_values(batch.inputs, batch.targets)

        precision = max((torch.finfo(p.dtype).eps for p in model.parameters() if p.is_floating_point()), default=0.0)
        tolerance = max(TOLERANCE, 4 * precision)
        # With dropout or BatchNorm, any loss of the micro-batches would differ from the loss of the batch.
        with evaluating(model), torch.no_grad(), torch.random.fork_rng(devices=[]):
            division = try_division(
                compute_loss, trial_size, "the loss", SpecError, self.weight_of, get_weighted_values, tolerance
            )
        obstacle = "" if self.weight_of else "the loss cannot be computed in evaluation mode"
        return division or LossRule(self.weight_of, obstacle=obstacle)

    def _mask_labels(self, batch: Batch) -> Batch:
        """Mask half of the first sample's labels, so that a loss per label differs from a loss per sample."""
        names = self.user_batches.argument_names
        if self.user_batches.loss is not None or "labels" not in names:
            return batch
        label_index = names.index("labels")
        if batch.inputs[label_index].ndim < 2 or batch.inputs[label_index].is_floating_point():
            return batch
        labels = batch.inputs[label_index].clone()
        labels[0, labels.shape[1] // 2 :] = -100  # ignored by torch's cross entropy
        return Batch(batch.ids, (*batch.inputs[:label_index], labels, *batch.inputs[label_index + 1 :]), batch.targets)

    def _share_of_batch(self, micro_batch: Batch) -> float:
        """Compute the weight of a micro-batch in the loss of its batch, from 0 to 1."""
        user_batches, batch = self.user_batches, self.current_batch
        assert batch is not None
        if user_batches.whole or len(micro_batch) == len(batch) or (self.division and self.division.summed):
            return 1.0
        if self.division is None or self.division.count is None:
            return len(micro_batch) / len(batch)
        micro_batch_values = user_batches.weighted_values(micro_batch.inputs, micro_batch.targets)
        batch_values = user_batches.weighted_values(batch.inputs, batch.targets)
        return float(
            sum_counts(self.division.count, micro_batch_values) / sum_counts(self.division.count, batch_values)
        )

    def start_denominators(
        self, batch: Batch | None, share: BatchShare, ranks: Ranks, device: torch.device
    ) -> Denominators:
        """Return no sums, because the size of the batch is known."""
        return dict

    def compute(self, outputs: Any, batch: Batch, denominators: Mapping[str, Tensor]) -> Tensor:
        """Compute the share of a micro-batch in the loss of an update; a scalar."""
        loss = self.user_batches.mean_loss(outputs, batch.targets)
        share = self._share_of_batch(batch) / self.batches_per_update
        if not share:  # without weights the loss may be 0 / 0
            return 0 * next(p for p in self.user_batches.model.parameters() if p.requires_grad).sum()
        return loss if share == 1 else loss * share


class UserGenerators:
    """Restores the random generators of a user's loop, which we do not seed, before another try of a batch."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.states: tuple[Tensor, Tensor | None, Any, Any] | None = None
        """Generator states of torch (CPU, GPU), NumPy and Python before this batch; None before its first try."""

    def prepare_try(self, seed: int) -> None:
        """Remember the state of all generators in the first try of a batch, and restore it in later tries."""
        on_gpu = self.device.type == "cuda"
        if self.states is None:
            gpu = torch.cuda.get_rng_state(self.device) if on_gpu else None
            self.states = torch.get_rng_state(), gpu, np.random.get_state(), random.getstate()
            return
        cpu, gpu, numpy_state, python_state = self.states
        torch.set_rng_state(cpu)
        np.random.set_state(numpy_state)
        random.setstate(python_state)
        if gpu is not None:
            torch.cuda.set_rng_state(gpu, self.device)


class Accumulation:
    """Accumulates the gradients of several batches before one update."""

    def __init__(self, parameters: Sequence[nn.Parameter], batches: int) -> None:
        self.parameters, self.batches = parameters, batches
        self.earlier_gradients: list[Tensor | None] = []
        self.count = 0
        """Batches since the last update."""
        self.loss = 0.0

    def store_gradients(self, loss: float) -> None:
        """Store and clear the gradients of a batch, so that the next batch can be tried again on its own."""
        self.add_earlier()
        self.earlier_gradients = [parameter.grad for parameter in self.parameters]
        # Otherwise the backward pass of other code would add to the stored tensors.
        for parameter in self.parameters:
            parameter.grad = None
        self.count, self.loss = self.count + 1, self.loss + loss

    @torch.no_grad()
    def add_earlier(self) -> None:
        """Add the stored gradients of earlier batches to the gradients of the current batch."""
        for parameter, earlier in zip(self.parameters, self.earlier_gradients, strict=False):
            if earlier is not None:
                parameter.grad = earlier if parameter.grad is None else earlier + parameter.grad
        self.earlier_gradients = []

    @torch.no_grad()
    def take_incomplete(self) -> float:
        """Set the gradients to the mean over the stored batches of an incomplete update; returns their mean loss."""
        # Each gradient was divided by the number of batches of a whole update.
        factor, loss = self.batches / self.count, self.loss
        for parameter, earlier in zip(self.parameters, self.earlier_gradients, strict=True):
            parameter.grad = None if earlier is None else earlier * factor
        self.clear()
        return loss * factor

    def clear(self) -> None:
        """Forget all gradients and the loss, after an update."""
        self.earlier_gradients, self.count, self.loss = [], 0, 0.0
