"""The result of a training step, read from the GPU in one transfer."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class StepResult:
    """The result of a step."""

    loss: float
    grad_norm: float
    finite: bool
    """False if loss or gradient norm were not finite; the weights are then unchanged."""


def outcome_of(loss: Tensor, norm: Tensor) -> StepResult:
    """Read the result in a single transfer, the only synchronization with the GPU in a step."""
    values = torch.stack([loss.double(), norm.double()]).tolist()
    return StepResult(values[0], values[1], math.isfinite(values[0]) and math.isfinite(values[1]))
