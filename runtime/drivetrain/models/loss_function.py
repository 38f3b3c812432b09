"""Defines the interface of a loss for a training step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from drivetrain.data.dataset import Batch
from drivetrain.distributed.batch_sharding import BatchShare
from drivetrain.distributed.ranks import Ranks

Denominators = Callable[[], Mapping[str, Tensor]]
"""Function that returns the sum of the batch's sample weights by head; its first call waits for other processes."""


class LossFunction(Protocol):
    """The loss of a job, or of a user's own loop."""

    @property
    def split_obstacle(self) -> str:
        """Reason why a batch's loss cannot be computed from the losses of its micro-batches; empty if it can."""

    def start_denominators(
        self, batch: Batch | None, share: BatchShare, ranks: Ranks, device: torch.device, /
    ) -> Denominators:
        """Start the sum of sample weights over all processes; the forward pass does not wait for it."""

    def compute(self, outputs: Any, batch: Batch, denominators: Mapping[str, Tensor], /) -> Tensor:
        """Compute the contribution of a micro-batch to the loss of its batch; a scalar."""
