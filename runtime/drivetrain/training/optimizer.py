"""The optimizer of a run: torch's own, without weight decay on norms and biases."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import cache
from typing import Any

import torch
from torch import nn

from drivetrain.job.train import Adam, Sgd

FACTOR_KEY = "lr_factor"
"""Key of a parameter group: the factor of the learning rate."""


def group_parameters(
    model: nn.Module, weight_decay: float, factors: Mapping[str, float] | None = None
) -> list[dict[str, object]]:
    """Parameters in two groups for each factor of the learning rate: weights with decay; norms, biases and other
    vectors without.

    Args:
        model: the network.
        weight_decay: of the weights.
        factors: of the learning rate, by the names of the parameters that are trained at any time; 1 for all that are
            trainable now if None.
    """
    factor_of = {name: 1.0 for name, p in model.named_parameters() if p.requires_grad} if factors is None else factors
    trained = [(p, factor_of[name]) for name, p in model.named_parameters() if name in factor_of]
    parameter_groups: list[dict[str, object]] = []
    for factor in dict.fromkeys(factor_of.values()):
        decayed = [p for p, own_factor in trained if own_factor == factor and p.ndim > 1]
        undecayed = [p for p, own_factor in trained if own_factor == factor and p.ndim <= 1]
        parameter_groups += [
            {"params": decayed, "weight_decay": weight_decay, FACTOR_KEY: factor},
            {"params": undecayed, "weight_decay": 0.0, FACTOR_KEY: factor},
        ]
    return [group for group in parameter_groups if group["params"]]


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate: each group gets its share of it."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group[FACTOR_KEY]


def build(spec: Adam | Sgd, model: nn.Module, factors: Mapping[str, float] | None = None) -> torch.optim.Optimizer:
    """Build the optimizer that the spec names; `factors` as in `group_parameters`."""
    parameters = group_parameters(model, spec.weight_decay, factors)
    optimizer: torch.optim.Optimizer
    if isinstance(spec, Sgd):
        optimizer = _unhook(torch.optim.SGD)(
            parameters, lr=spec.lr, momentum=spec.momentum, nesterov=spec.nesterov, dampening=spec.dampening
        )
    else:
        kind = torch.optim.AdamW if spec.name == "adamw" else torch.optim.Adam
        optimizer = _unhook(kind)(parameters, lr=spec.lr, betas=spec.betas, eps=spec.eps, amsgrad=spec.amsgrad)
    return optimizer


@cache
def _unhook(kind: Any) -> Any:
    # torch decorates these methods for its compiler, and the decorators import it at the first call. That takes as long
    # as importing torch, even in runs that compile nothing. An optimizer is never compiled here.
    methods = {name: inspect.unwrap(getattr(kind, name)) for name in ("step", "zero_grad", "add_param_group")}
    return type(kind.__name__, (kind,), methods | {"step": torch.no_grad()(methods["step"])})
