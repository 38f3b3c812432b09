"""Gradient scaling for fp16, which keeps small gradients from underflowing to zero.

The rules are those of `torch.amp.GradScaler`: a step with non-finite gradients is skipped and lowers the scale, a
number of good steps in a row raises it. The scale is a Python number with bounds, which can be logged. Where the host
does not wait for the result of a step, the device has a copy of scale and count, which follows the same rules one step
ahead of the host.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from drivetrain.data.to_device import onto
from drivetrain.distributed.sharded_tensor import get_local_part
from drivetrain.job.train import Fp16


class Scaler:
    """The scale of one run.

    Args:
        spec: how the scale changes; None for no scaling.
    """

    def __init__(self, spec: Fp16 | None = None) -> None:
        self.spec = spec
        self.scale = spec.initial_scale if spec else 1.0
        self.good_steps = 0
        """Steps with finite gradients in a row since the last change of the scale."""
        self.fell_back = False
        """Whether the run has switched to fp32."""
        self.on_device: tuple[Tensor, Tensor] | None = None
        """`scale` (float32) and `good_steps` (int32) on the device, shape (); None until a step needs them."""

    @property
    def active(self) -> bool:
        """Whether gradients are scaled."""
        return self.spec is not None and not self.fell_back

    def scale_loss(self, loss: Tensor) -> Tensor:
        """The loss times the scale, from which the backward pass starts."""
        return loss * (self.on_device[0] if self.on_device else self.scale) if self.active else loss

    @torch.no_grad()
    def unscale(self, parameters: Iterable[nn.Parameter]) -> None:
        """Divide the gradients by the scale; infinite ones stay infinite."""
        gradients = [get_local_part(p.grad) for p in parameters if p.grad is not None]
        if not self.active or not gradients:
            return
        if self.on_device:
            torch._foreach_mul_(gradients, self.on_device[0].double().reciprocal().float())
        else:
            torch._foreach_mul_(gradients, 1.0 / self.scale)

    def update(self, finite: bool) -> None:
        """After a step: lower the scale if it was skipped, raise it after enough good ones."""
        if self.spec is None or self.fell_back:
            return
        if not finite:
            self.scale, self.good_steps = _round_to_float32(self.scale * self.spec.backoff_factor), 0
            return
        self.good_steps += 1
        if self.good_steps >= self.spec.growth_interval:
            grown = min(self.scale * self.spec.growth_factor, self.spec.max_scale)
            self.scale, self.good_steps = _round_to_float32(grown), 0

    @torch.no_grad()
    def update_on_device(self, finite: Tensor) -> None:
        """`update` on the device, for the next step; `update` follows once the host knows `finite`."""
        if self.spec is None or self.fell_back:
            return
        if self.on_device is None:
            self.on_device = (
                onto(finite.device, [self.scale])[0],
                onto(finite.device, [self.good_steps], torch.int32)[0],
            )
        scale, good_steps = self.on_device
        grows = good_steps + 1 >= self.spec.growth_interval
        # In float64, as the host computes it.
        wide_scale = scale.double()
        grown_scale = torch.where(
            grows, (wide_scale * self.spec.growth_factor).clamp(max=self.spec.max_scale), wide_scale
        )
        # In place: a recorded step knows these tensors.
        good_steps.copy_(torch.where(finite & ~grows, good_steps + 1, torch.zeros_like(good_steps)))
        scale.copy_(torch.where(finite, grown_scale, wide_scale * self.spec.backoff_factor))

    def state(self) -> dict[str, Any]:
        """The state for a checkpoint; empty without scaling, unless the training has gone back to fp32."""
        if self.spec:
            return {"scale": self.scale, "good": self.good_steps, "fallen": self.fell_back}
        return {"fallen": True} if self.fell_back else {}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore from a checkpoint; a switch to fp32 in this process stays."""
        self.fell_back |= bool(state.get("fallen", False))
        if self.spec and state:
            self.scale, self.good_steps = float(state["scale"]), int(state["good"])
            self.leave_device()

    def leave_device(self) -> None:
        """Go on with the host's scale, which must know the result of every step."""
        self.on_device = None


def _round_to_float32(number: float) -> float:
    """The number that the device's float32 copy holds."""
    return float(np.float32(number))
