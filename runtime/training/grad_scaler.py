"""Gradient scaling for fp16, which keeps small gradients from underflowing to zero.

The rules are those of `torch.amp.GradScaler`: a step with non-finite gradients is skipped and lowers the scale, a
number of good steps in a row raises it. The scale is a Python number, since the step checks for finite values anyway.
So there is no additional synchronization with the GPU, the scale has bounds, and it can be logged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from runtime.job.train import Fp16


class Scaler:
    """The scale of one run.

    Args:
        spec: how the scale changes; None for no scaling.
    """

    def __init__(self, spec: Fp16 | None = None) -> None:
        self.spec = spec
        self.scale = spec.initial_scale if spec else 1.0
        self.good = 0
        """Good steps in a row since the last change of the scale."""
        self.fallen = False
        """Whether the run has switched to fp32."""

    @property
    def active(self) -> bool:
        """Whether gradients are scaled."""
        return self.spec is not None and not self.fallen

    def scaled(self, loss: Tensor) -> Tensor:
        """The loss from which the backward pass starts."""
        return loss * self.scale if self.active else loss

    @torch.no_grad()
    def unscale(self, parameters: Iterable[nn.Parameter]) -> None:
        """Divide the gradients by the scale; infinite ones stay infinite."""
        gradients = [p.grad for p in parameters if p.grad is not None]
        if self.active and gradients:
            torch._foreach_mul_(gradients, 1.0 / self.scale)

    def update(self, finite: bool) -> None:
        """After a step: lower the scale if it was skipped, raise it after enough good ones."""
        if self.spec is None or self.fallen:
            return
        if not finite:
            self.scale, self.good = self.scale * self.spec.backoff_factor, 0
            return
        self.good += 1
        if self.good >= self.spec.growth_interval:
            self.scale, self.good = min(self.scale * self.spec.growth_factor, self.spec.max_scale), 0

    def state(self) -> dict[str, Any]:
        """The state for a checkpoint; empty without scaling."""
        return {"scale": self.scale, "good": self.good, "fallen": self.fallen} if self.spec else {}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore from a checkpoint; a switch to fp32 in this process stays."""
        if self.spec and state:
            self.scale, self.good = float(state["scale"]), int(state["good"])
            self.fallen |= bool(state["fallen"])
