"""Dropout whose random bits are drawn many at a time."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

ENOUGH = 1 << 15
"""Elements from which on it is faster than torch's."""
LEVELS = 1 << 16
"""Sixteen bits decide on an element, so a rate is kept to 1/65536."""


class DropoutFromBits(nn.Dropout):
    """Dropout with the distribution of `nn.Dropout` and other draws from it.

    torch draws one number for each element, one after another. Here each 64-bit number of a small fast counting
    generator (SFC64, C. Doty-Humphrey, PractRand) decides on four elements. What starts the generator comes from
    torch's own, so the same seed gives the same bits. Small, compiled and in-place calls are torch's.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Elements kept with the probability `1 - p`, and scaled so that the mean stays; shape as given."""
        if torch.compiler.is_compiling() or not self.training or self.inplace or not _plain(x):
            return super().forward(x)
        kept = round((1 - self.p) * LEVELS)
        if not 0 < kept < LEVELS:
            return super().forward(x)
        bits = np.random.SFC64(int(torch.randint(1 << 62, ()))).random_raw(-(-x.numel() // 4))
        drawn = torch.from_numpy(bits.view(np.int16)[: x.numel()]).view(x.shape)
        return x * (drawn < kept - LEVELS // 2).to(x.dtype).mul_(LEVELS / kept)


def _plain(x: Tensor) -> bool:
    """Whether it is a large tensor of numbers in main memory, and nothing that only looks like one."""
    return (
        type(x) in (Tensor, nn.Parameter)
        and x.device.type == "cpu"
        and x.layout is torch.strided
        and not x.is_nested
        and x.is_floating_point()
        and not torch._C._functorch.is_functorch_wrapped_tensor(x)
        and x.numel() >= ENOUGH
    )


def as_before(network: nn.Module) -> None:
    """Torch's own dropout again, in place."""
    for module in network.modules():
        if type(module) is DropoutFromBits:
            module.__class__ = nn.Dropout  # type: ignore[assignment]
