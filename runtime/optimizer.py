"""The optimizer of a run: torch's own, with no weight decay on norms and biases."""

from __future__ import annotations

import torch
from torch import nn

from runtime.job.train import Adam, Sgd


def groups(model: nn.Module, weight_decay: float) -> list[dict[str, object]]:
    """Trainable parameters in two groups: weights with decay; norms, biases and other vectors without."""
    trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    decayed = [p for _, p in trained if p.ndim > 1]
    plain = [p for _, p in trained if p.ndim <= 1]
    made: list[dict[str, object]] = [
        {"params": decayed, "weight_decay": weight_decay},
        {"params": plain, "weight_decay": 0.0},
    ]
    return [group for group in made if group["params"]]


def build(spec: Adam | Sgd, model: nn.Module) -> torch.optim.Optimizer:
    """The optimizer that the spec names."""
    parameters = groups(model, spec.weight_decay)
    if isinstance(spec, Sgd):
        return torch.optim.SGD(parameters, lr=spec.lr, momentum=spec.momentum, nesterov=spec.nesterov,
                               dampening=spec.dampening)  # fmt: skip
    kind = torch.optim.AdamW if spec.name == "adamw" else torch.optim.Adam
    return kind(parameters, lr=spec.lr, betas=spec.betas, eps=spec.eps, amsgrad=spec.amsgrad)
