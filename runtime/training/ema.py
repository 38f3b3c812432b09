"""An exponential moving average (EMA) of the weights, validated and stored beside the raw ones."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn


class Ema:
    """Average = decay * average + (1 - decay) * weights, after every step.

    The decay is min(decay, (1 + updates) / (10 + updates)), which limits the influence of the initial weights in short
    runs (as TensorFlow's ExponentialMovingAverage with `num_updates`). Floating-point buffers are averaged too, others
    copied.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay, self.updates = decay, 0
        self.average = {name: value.detach().clone() for name, value in model.state_dict().items()}

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Update the average with the model's weights."""
        self.updates += 1
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        for name, value in model.state_dict().items():
            if value.is_floating_point():
                self.average[name].lerp_(value, 1 - decay)
            else:
                self.average[name].copy_(value)

    @contextlib.contextmanager
    def swapped_in(self, model: nn.Module) -> Iterator[None]:
        """Swap the averaged weights into the model within the `with` block."""
        raw: dict[str, Tensor] = {name: value.clone() for name, value in model.state_dict().items()}
        model.load_state_dict(self.average)
        try:
            yield
        finally:
            model.load_state_dict(raw)
