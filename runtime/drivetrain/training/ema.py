"""Averages the weights over the steps of a training."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from drivetrain.data.dataset import onto


class Ema:
    """Moving average of the weights: average = decay * average + (1 - decay) * weights, after every step.

    The decay is min(decay, (1 + updates) / (10 + updates)), which limits the influence of the initial weights in short
    runs (as in TensorFlow's ExponentialMovingAverage with `num_updates`). Floating-point buffers are averaged too,
    other buffers are copied.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay, self.updates = decay, 0
        self.updates_on_device: Tensor | None = None
        """Copy of `updates` on the device, shape (), one step ahead of the host; None until a step needs it."""
        self.average = {name: value.detach().clone() for name, value in model.state_dict().items()}
        """The averaged tensors by name."""
        self.averaged_names = {name for name, value in self.average.items() if _is_finite(value)}
        """Names of averaged tensors; others are copied, such as a mask of -infinity, whose average would be NaN."""

    @torch.no_grad()
    def update(self, model: nn.Module, finite: Tensor) -> None:
        """Update the average with the model's weights if `finite`, a boolean tensor of shape () on the weights' device.

        The host need not know its value yet; call `count` once it does.
        """
        if self.updates_on_device is None:
            self.updates_on_device = onto(finite.device, [self.updates], torch.float64)[0]
        self.updates_on_device += finite  # in place: a captured step uses this tensor
        decay = ((1 + self.updates_on_device) / (10 + self.updates_on_device)).clamp(max=self.decay)
        weight = torch.where(finite, 1 - decay, torch.zeros_like(decay))
        groups: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = {}
        copies, copied = list[Tensor](), list[Tensor]()
        for name, value in model.state_dict().items():
            if name in self.averaged_names:
                averages, values = groups.setdefault(value.dtype, ([], []))
                averages.append(self.average[name])
                values.append(value)
            else:
                copies.append(self.average[name])
                copied.append(value)
        # A step that was not finite has restored these buffers. torch refuses empty lists.
        if copies:
            torch._foreach_copy_(copies, copied)
        for dtype, (averages, values) in groups.items():
            if weight.device.type == "cpu":
                for average, value in zip(averages, values, strict=True):
                    average.lerp_(value, weight.to(dtype))
            else:
                lerp_together(averages, values, weight.to(dtype))

    def count(self, finite: bool) -> None:
        """Count an update that the device has made if `finite`."""
        self.updates += finite

    def restore(self, average: dict[str, Tensor], updates: int) -> None:
        """Restore the average and its number of updates from a checkpoint."""
        self.average, self.updates, self.updates_on_device = average, updates, None

    @contextlib.contextmanager
    def swap_in(self, model: nn.Module) -> Iterator[None]:
        """Swap the averaged weights into the model within the `with` block."""
        raw = {name: value.clone() for name, value in model.state_dict().items()}
        model.load_state_dict(self.average)
        try:
            yield
        finally:
            model.load_state_dict(raw)


def lerp_together(averages: list[Tensor], values: list[Tensor], weight: Tensor) -> None:
    """Add weight * (value - average) to each average in three operations over all tensors.

    A kernel for each tensor would double the launches of a step on a GPU. All tensors have the same dtype and device, and
    `weight` is a scalar of shape ().
    """
    changes = torch._foreach_sub(values, averages)
    torch._foreach_mul_(changes, weight)
    torch._foreach_add_(averages, changes)


def _is_finite(value: Tensor) -> bool:
    return value.is_floating_point() and bool(torch.isfinite(value).all())
