"""Muon: updates the matrices of hidden layers by their orthogonalized momentum, and all other weights by AdamW.

Muon is by Jordan et al. 2024 (kellerjordan.github.io/posts/muon). Its updates are scaled to the size of AdamW's by Liu et
al. 2025 (arXiv:2502.16982), so that one learning rate and one weight decay suit all weights.
"""

from __future__ import annotations

import math
from collections.abc import Container
from typing import Any

import torch
from torch import Tensor, nn

from drivetrain.job import Job
from drivetrain.job import train as train_spec
from drivetrain.training.optimizer import Groups, unhook

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Coefficients of the Newton-Schulz iteration by Jordan et al., which move small singular values up fastest."""
ITERATIONS = 5
MIN_NORM = 1e-7
ADAMW_SIZE = 0.2
"""Root mean square of AdamW's updates with a rate of 1, by Liu et al."""
IS_MATRIX = "is_matrix"
"""Key of a parameter group: whether its parameters are updated by Muon."""


def build(job: Job, model: nn.Module, groups: Groups, output_sizes: Container[int]) -> torch.optim.Optimizer:
    """Build Muon for linear and convolutional layers, except for linear layers with as many outputs as a head.

    Raises:
        SpecError: if the network has no such layer that is trained.
    """
    matrices = set()
    for layer in model.modules():
        if isinstance(layer, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d):
            is_output = isinstance(layer, nn.Linear) and layer.out_features in output_sizes
            if not is_output:
                matrices.add(layer.weight)
    divided: Groups = []
    for group in groups:
        for is_matrix in (True, False):
            members = [p for p in group["params"] if (p in matrices) == is_matrix]
            if members:
                divided.append({**group, "params": members, IS_MATRIX: is_matrix})
    if not any(group[IS_MATRIX] for group in divided):
        raise job.spec_error(
            ("train", "optimizer"),
            "is muon, and no hidden linear or convolutional layer is trained",
            "adamw, adam, sgd",
            "choose one of these, or train hidden layers",
        )
    spec = job.train.optimizer
    assert isinstance(spec, train_spec.Muon)
    optimizer: torch.optim.Optimizer = unhook(MuonOptimizer)(divided, spec.lr, spec.momentum, spec.betas, spec.eps)
    return optimizer


class MuonOptimizer(torch.optim.Optimizer):
    """Updates parameter groups with IS_MATRIX by Muon, and the other groups by AdamW.

    Args:
        groups: parameter groups with `weight_decay` and IS_MATRIX.
        lr: learning rate.
        momentum: decay of the moment of a matrix, which is added with Nesterov's look-ahead.
        betas: decay of the moments of AdamW.
        eps: term of AdamW that prevents a division by zero.
    """

    def __init__(self, groups: Groups, lr: float, momentum: float, betas: tuple[float, float], eps: float) -> None:
        super().__init__(groups, {"lr": lr, "momentum": momentum, "betas": betas, "eps": eps})

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update all parameters that have a gradient."""
        for group in self.param_groups:
            update = self._update_matrix if group[IS_MATRIX] else self._update_by_adamw
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.mul_(1 - group["lr"] * group["weight_decay"])
                    update(parameter, parameter.grad, group)

    def _update_matrix(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state["momentum_buffer"] = torch.zeros_like(parameter)
        moment = state["momentum_buffer"].lerp_(gradient, 1 - group["momentum"])
        # A convolution is a matrix with a row for each filter.
        ahead = gradient.lerp(moment, group["momentum"]).flatten(1)
        size = ADAMW_SIZE * math.sqrt(max(ahead.shape))
        parameter.add_(orthogonalize(ahead).view_as(parameter), alpha=-group["lr"] * size)

    def _update_by_adamw(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state["step"] = torch.zeros(())
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
        state["step"] += 1
        step, (beta1, beta2) = state["step"].item(), group["betas"]
        first = state["exp_avg"].lerp_(gradient, 1 - beta1)
        second = state["exp_avg_sq"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        root = (second / (1 - beta2**step)).sqrt_().add_(group["eps"])
        parameter.addcdiv_(first, root, value=-group["lr"] / (1 - beta1**step))


def orthogonalize(matrix: Tensor) -> Tensor:
    """Move the singular values of a matrix (rows, columns) near 1 by the Newton-Schulz iteration of Jordan et al."""
    is_tall = matrix.shape[0] > matrix.shape[1]
    # The iteration multiplies squares of the smaller side.
    result = matrix.T if is_tall else matrix
    # It needs singular values of at most 1.
    result = result / result.norm().clamp_min(MIN_NORM)
    a, b, c = COEFFICIENTS
    for _ in range(ITERATIONS):
        square = result @ result.T
        result = a * result + (b * square + c * square @ square) @ result
    orthogonal: Tensor = result.T if is_tall else result
    return orthogonal
