"""Updates weights only if the numbers are finite, decided by the device: torch's fused kernels take a flag for that.

So the host need not wait for the gradients before it queues the update and the next step.
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


@contextlib.contextmanager
def only_if(optimizer: torch.optim.Optimizer, finite: Tensor) -> Iterator[None]:
    """A block in which an update changes nothing unless `finite`, a boolean tensor of shape () on the device."""
    optimizer.grad_scale, optimizer.found_inf = None, finite.logical_not().float()  # type: ignore[attr-defined]
    try:
        yield
    finally:
        del optimizer.grad_scale, optimizer.found_inf  # type: ignore[attr-defined]
