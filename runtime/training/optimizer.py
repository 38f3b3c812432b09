"""The optimizer of a run: torch's own, without weight decay on norms and biases."""

from __future__ import annotations

import inspect
from functools import cache
from typing import Any

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
    """Build the optimizer that the spec names."""
    parameters = groups(model, spec.weight_decay)
    made: torch.optim.Optimizer
    if isinstance(spec, Sgd):
        made = _light(torch.optim.SGD)(
            parameters, lr=spec.lr, momentum=spec.momentum, nesterov=spec.nesterov, dampening=spec.dampening
        )
    else:
        kind = torch.optim.AdamW if spec.name == "adamw" else torch.optim.Adam
        made = _light(kind)(parameters, lr=spec.lr, betas=spec.betas, eps=spec.eps, amsgrad=spec.amsgrad)
    return made


@cache
def _light(kind: Any) -> Any:
    # torch decorates these methods for its compiler, and the decorators import it at the first call. That takes as long
    # as importing torch, even in runs that compile nothing. An optimizer is never compiled here.
    methods = {name: inspect.unwrap(getattr(kind, name)) for name in ("step", "zero_grad", "add_param_group")}
    return type(kind.__name__, (kind,), methods | {"step": torch.no_grad()(methods["step"])})
