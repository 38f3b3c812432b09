"""Blocks: the repeated parts of a network, and how the activations inside one are made again instead of kept."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from runtime.errors import SpecError

_LISTS = (nn.ModuleList, nn.Sequential)
Buffers = dict[nn.Module, dict[str, Tensor | None]]


def repeated(network: nn.Module) -> list[nn.Module]:
    """The layers of an encoder, the blocks of a ResNet: parts of one class that stand in a list, at least two of them.

    A part counts only if it has parts itself; of blocks inside of blocks the innermost are meant.
    """
    found: list[nn.Module] = []
    alike = Counter(type(child) for child in network.children()) if isinstance(network, _LISTS) else Counter()
    for child in network.children():
        inside = repeated(child)
        is_block = alike[type(child)] > 1 and not isinstance(child, _LISTS) and any(True for _ in child.children())
        found += inside or [child] * is_block
    return found


def recompute(network: nn.Module) -> None:
    """Let the backward pass make the activations of the repeated blocks again, one block after the other."""
    for block in repeated(network):
        kind: Any = type(block)
        block.__class__ = _recomputed(kind)


def recomputes(network: nn.Module) -> bool:
    """Whether the blocks of a network do so."""
    return any(isinstance(module, RecomputedBlock) for module in network.modules())


class RecomputedBlock(nn.Module):
    """A block that keeps its inputs only. Gradient, dropout and buffers are those of the block as it was.

    Raises:
        SpecError: if the block changes its inputs.
    """

    def forward(self, *inputs: Any, **named: Any) -> Any:
        if not (torch.is_grad_enabled() and self.training):
            return super().forward(*inputs, **named)
        versions = [(x, x._version) for x in (*inputs, *named.values()) if isinstance(x, Tensor)]
        outputs = checkpoint(
            super().forward,
            *inputs,
            use_reentrant=False,
            preserve_rng_state=True,
            context_fn=lambda: _contexts(self),
            **named,
        )
        if any(x._version != version for x, version in versions):
            # The second pass would start from other inputs, and give another gradient without a word.
            raise SpecError(
                f"optimize.gradient_checkpointing: {type(self).__mro__[2].__name__} writes into its inputs",
                "blocks that leave their inputs as they are",
                "set it to false, or change the block",
            )
        return outputs


@cache
def _recomputed(kind: Any) -> Any:
    # A class of its own and not a new `forward` on the instance: a copy of the network would call the original's.
    # Kept from the compiler here and not where it is defined: that imports the compiler, as long as torch itself.
    forward = torch.compiler.disable(RecomputedBlock.forward)  # type: ignore[no-untyped-call]
    return type(kind.__name__, (RecomputedBlock, kind), {"__module__": kind.__module__, "forward": forward})


def _contexts(block: nn.Module) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """For the first pass nothing; for the second buffers of its own, as they were before the first."""
    return contextlib.nullcontext(), as_before(block)


def as_before(network: nn.Module) -> AbstractContextManager[None]:
    """A context in which a network has copies, made now, of its buffers: it may pass without leaving a trace in them."""
    copies: Buffers = {
        module: {name: None if value is None else value.clone() for name, value in module._buffers.items()}
        for module in network.modules()
        if module._buffers
    }
    return _with(copies)


@contextlib.contextmanager
def _with(buffers: Buffers) -> Iterator[None]:
    """Other buffers in place of a network's own: BatchNorm has counted these samples already."""
    own = {module: module._buffers for module in buffers}
    for module, values in buffers.items():
        module._buffers = values
    try:
        yield
    finally:
        for module, values in own.items():
            module._buffers = values
