"""Dropout for CPUs that generates its random bits in bulk."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

MIN_ELEMENTS = 1 << 15
"""Elements; from this size on it is faster than torch's dropout."""
LEVELS = 1 << 16
"""Each element uses 16 random bits, so the rate is rounded to 1/65536."""


class DropoutFromBits(nn.Dropout):
    """Dropout with the distribution of `nn.Dropout`, from another random stream.

    torch generates one number per element, one after another. Here each 64-bit number of a small and fast generator
    (SFC64, C. Doty-Humphrey, PractRand) decides four elements. The generator is seeded from torch's, so the same seed
    gives the same bits. Small, compiled and in-place calls use torch's dropout.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Keep each element with probability `1 - p` and scale by `1 / (1 - p)`; the shape is unchanged."""
        if torch.compiler.is_compiling() or not self.training or self.inplace or not _plain(x):
            return super().forward(x)
        kept_levels = round((1 - self.p) * LEVELS)
        if not 0 < kept_levels < LEVELS:
            return super().forward(x)
        bits = np.random.SFC64(int(torch.randint(1 << 62, ()))).random_raw(-(-x.numel() // 4))
        drawn = torch.from_numpy(bits.view(np.int16)[: x.numel()]).view(x.shape)
        return x * (drawn < kept_levels - LEVELS // 2).to(x.dtype).mul_(LEVELS / kept_levels)


def _plain(x: Tensor) -> bool:
    """Whether this is a large, plain CPU tensor, and no subclass or traced stand-in."""
    return (
        type(x) in (Tensor, nn.Parameter)
        and x.device.type == "cpu"
        and x.layout is torch.strided
        and not x.is_nested
        and x.is_floating_point()
        and not torch._C._functorch.is_functorch_wrapped_tensor(x)
        and x.numel() >= MIN_ELEMENTS
    )


def restore_layers(network: nn.Module) -> None:
    """Restore torch's dropout, in place."""
    for module in network.modules():
        if type(module) is DropoutFromBits:
            module.__class__ = nn.Dropout  # type: ignore[assignment]
