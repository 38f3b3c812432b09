"""What torch's fused kernels need around an update.

They take a flag, on the device, whether numbers are finite, and change nothing if not. So the host need not wait for the
gradients before it queues the update and the next step.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

KINDS = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD)
"""Optimizers whose fused kernels take `found_inf`, as for torch's GradScaler."""


def is_possible(optimizer: torch.optim.Optimizer) -> bool:
    """Whether the device can skip an update by itself.

    Not before the first update: the kernel would leave momentum that it creates uninitialized.
    """
    return (
        isinstance(optimizer, KINDS)
        and all(group.get("fused") for group in optimizer.param_groups)
        and all(_is_begun(optimizer, group) for group in optimizer.param_groups)
    )


def _is_begun(optimizer: torch.optim.Optimizer, group: Mapping[str, Any]) -> bool:
    if isinstance(optimizer, torch.optim.SGD) and not group["momentum"]:
        return True
    return all(p in optimizer.state for p in group["params"] if p.grad is not None)


@torch.no_grad()
def begin_late(optimizer: torch.optim.Optimizer) -> None:
    """Give parameters their first momentum that have a gradient for the first time after others had theirs: layers that
    were frozen, or that no batch has used. torch's fused kernel takes all parameters of a group or none for new.

    The kernel then computes what a first step is in torch: a momentum that is the gradient itself.
    """
    if not isinstance(optimizer, torch.optim.SGD):
        return
    for group in optimizer.param_groups:
        if not group["momentum"] or not group.get("fused"):
            continue
        used = [p for p in group["params"] if p.grad is not None]
        late = [p for p in used if optimizer.state.get(p, {}).get("momentum_buffer") is None]
        for p in late if len(late) < len(used) else ():
            gradient = p.grad + group["weight_decay"] * p
            optimizer.state[p]["momentum_buffer"] = gradient * (group["dampening"] / group["momentum"])


@contextlib.contextmanager
def only_if(optimizer: torch.optim.Optimizer, finite: Tensor) -> Iterator[None]:
    """A block in which an update changes nothing unless `finite`, a boolean tensor of shape () on the device."""
    optimizer.grad_scale, optimizer.found_inf = None, finite.logical_not().float()  # type: ignore[attr-defined]
    try:
        yield
    finally:
        del optimizer.grad_scale, optimizer.found_inf  # type: ignore[attr-defined]
