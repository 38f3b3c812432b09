"""Scaler: gradients of fp16 multiplied by a number on their way back, so that small ones do not vanish.

The rules are those of `torch.amp.GradScaler`: a step whose gradients are not finite is skipped and lowers the scale,
so many good ones in a row raise it. The scale is a plain number here, since the step asks anyway whether its numbers
are finite: nothing else waits for the GPU, the scale has bounds, and every record can show it.
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
        spec: how it moves; None to scale nothing.
    """

    def __init__(self, spec: Fp16 | None = None) -> None:
        self.spec = spec
        self.scale = spec.initial_scale if spec else 1.0
        self.good = 0
        """Good steps in a row since the scale last moved."""
        self.fallen = False
        """Whether the run has gone over to fp32."""

    @property
    def active(self) -> bool:
        """Whether gradients are scaled."""
        return self.spec is not None and not self.fallen

    def scaled(self, loss: Tensor) -> Tensor:
        """The loss that the backward pass starts from."""
        return loss * self.scale if self.active else loss

    @torch.no_grad()
    def unscale(self, parameters: Iterable[nn.Parameter]) -> None:
        """Make the gradients those of the loss itself; infinite ones stay so."""
        gradients = [p.grad for p in parameters if p.grad is not None]
        if self.active and gradients:
            torch._foreach_mul_(gradients, 1.0 / self.scale)

    def update(self, finite: bool) -> None:
        """After a step: lower the scale if it was skipped, raise it after so many good ones."""
        if self.spec is None or self.fallen:
            return
        if not finite:
            self.scale, self.good = self.scale * self.spec.backoff_factor, 0
            return
        self.good += 1
        if self.good >= self.spec.growth_interval:
            self.scale, self.good = min(self.scale * self.spec.growth_factor, self.spec.max_scale), 0

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps; nothing if nothing is scaled."""
        return {"scale": self.scale, "good": self.good, "fallen": self.fallen} if self.spec else {}

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint; that the run has gone over to fp32 is never forgotten in this process."""
        if self.spec and state:
            self.scale, self.good = float(state["scale"]), int(state["good"])
            self.fallen |= bool(state["fallen"])
