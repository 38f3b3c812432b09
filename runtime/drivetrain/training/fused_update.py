"""Clips gradients, and lets torch's fused optimizers skip an update or read their learning rates on the device.

Their kernels read a flag on the device that says whether all numbers are finite, and change nothing otherwise. So the
host need not wait for the gradients before it queues the update and the next step.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn


@torch.no_grad()
def clip_gradients(parameters: Sequence[nn.Parameter], max_norm: float | None) -> Tensor:
    """Scale the gradients so that their norm is at most `max_norm`; returns the norm before, of shape ().

    Args:
        parameters: parameters of the optimizer.
        max_norm: largest norm; None for no clipping, which saves a pass over the gradients.
    """
    gradients = []
    for parameter in parameters:
        if parameter.grad is not None:
            # A sparse gradient may list a row several times; `coalesce` adds them up.
            is_sparse = parameter.grad.is_sparse
            gradients.append(parameter.grad.coalesce().values() if is_sparse else parameter.grad)
    total_norm: Tensor = nn.utils.get_total_norm(gradients)
    if max_norm is not None:
        nn.utils.clip_grads_with_norm_(parameters, max_norm, total_norm)
    return total_norm


FUSED_KINDS = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD)
"""Optimizers whose fused kernels read `found_inf`, as for torch's GradScaler."""


def can_skip_update(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether the device can skip an update by itself.

    It cannot skip the first update: the kernel would leave newly created momentum uninitialized.
    """
    if not isinstance(optimizer, FUSED_KINDS) or not all(group.get("fused") for group in optimizer.param_groups):
        return False
    # Usually every parameter has state; comparing two lengths is faster than checking each group.
    if len(optimizer.state) == sum(len(group["params"]) for group in optimizer.param_groups):
        return True
    return all(_has_state(optimizer, group) for group in optimizer.param_groups)


def _has_state(optimizer: torch.optim.Optimizer, group: Mapping[str, Any]) -> bool:
    if isinstance(optimizer, torch.optim.SGD) and not group["momentum"]:
        return True
    return all(p in optimizer.state for p in group["params"] if p.grad is not None)


@torch.no_grad()
def create_missing_momentum(optimizer: torch.optim.Optimizer) -> None:
    """Initialize momentum for parameters that get their first gradient late, in layers that were frozen or not used.

    torch's fused kernel treats either all parameters of a group as new or none. With the momentum set here it computes
    torch's first step for the new ones, after which the momentum is the gradient itself.
    """
    if not isinstance(optimizer, torch.optim.SGD):
        return
    for group in optimizer.param_groups:
        if not group["momentum"] or not group.get("fused"):
            continue
        used = [p for p in group["params"] if p.grad is not None]
        without_momentum = [p for p in used if optimizer.state.get(p, {}).get("momentum_buffer") is None]
        if len(without_momentum) == len(used):
            continue  # the kernel initializes a group in which all are new
        for p in without_momentum:
            gradient = p.grad + group["weight_decay"] * p
            # The solution of momentum * buffer + (1 - dampening) * gradient = gradient.
            optimizer.state[p]["momentum_buffer"] = gradient * (group["dampening"] / group["momentum"])


@contextlib.contextmanager
def rates_from_device(optimizer: torch.optim.Optimizer, rates: Tensor) -> Iterator[None]:
    """Let updates in the block read their learning rates from the device: `rates` by group, float32.

    Some optimizers accept such rates only with `capturable`.
    """
    earlier_settings = [(group["lr"], group.get("capturable")) for group in optimizer.param_groups]
    for group, rate in zip(optimizer.param_groups, rates.unbind(), strict=True):
        group["lr"] = rate
        if "capturable" in group:
            group["capturable"] = True
    try:
        yield
    finally:
        for group, (number, capturable) in zip(optimizer.param_groups, earlier_settings, strict=True):
            group["lr"] = number
            if "capturable" in group:
                group["capturable"] = capturable


@contextlib.contextmanager
def skip_unless(optimizer: torch.optim.Optimizer, finite: Tensor) -> Iterator[None]:
    """Skip updates in the block unless `finite`, a boolean tensor of shape () on the device."""
    # The attributes that torch's GradScaler sets.
    optimizer.grad_scale, optimizer.found_inf = None, finite.logical_not().float()  # type: ignore[attr-defined]
    try:
        yield
    finally:
        del optimizer.grad_scale, optimizer.found_inf  # type: ignore[attr-defined]
