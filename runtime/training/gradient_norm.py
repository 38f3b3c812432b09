"""The norm of all gradients, and clipping by it, whether each process has all of them or its part."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from runtime.distributed.ranks import Ranks
from runtime.distributed.sharded_tensor import is_sharded, local, square_sum

SMALL = 1e-6
"""Added to the norm before it divides, as torch does."""


@torch.no_grad()
def clip(parameters: Sequence[nn.Parameter], most: float | None, ranks: Ranks) -> Tensor:
    """Scale the gradients so that their norm is at most `most`; returns the norm before, of shape ().

    Raises:
        PeerError: if gradients are divided, and another process is gone.
    """
    if not any(is_sharded(p) for p in parameters):
        return nn.utils.clip_grad_norm_(parameters, most or float("inf"))
    gradients = [p.grad for p in parameters if p.grad is not None]
    (divided,) = ranks.all_reduce_sum([square_sum(g for g in gradients if is_sharded(g))])
    norm = (divided + square_sum(g for g in gradients if not is_sharded(g)).to(divided.device)).sqrt()
    if most is not None and gradients:
        factor = (most / (norm + SMALL)).clamp(max=1.0)
        torch._foreach_mul_([local(g) for g in gradients], factor.float())
    return norm
