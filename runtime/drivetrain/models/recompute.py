"""Saves memory by activation checkpointing: the backward pass recomputes the activations of repeated blocks."""

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

from drivetrain.errors import SpecError

_LIST_CLASSES = (nn.ModuleList, nn.Sequential)
BuffersByModule = dict[nn.Module, dict[str, Tensor | None]]


def find_repeated_blocks(network: nn.Module) -> list[nn.Module]:
    """Find repeated blocks: two or more modules of one class in a list (encoder layers, ResNet blocks).

    Only modules with submodules count; for nested blocks the innermost blocks are returned.
    """
    blocks: list[nn.Module] = []
    classes: Counter[type] = Counter()
    if isinstance(network, _LIST_CLASSES):
        classes = Counter(type(child) for child in network.children())
    for child in network.children():
        nested_blocks = find_repeated_blocks(child)
        has_layers = bool(list(child.children())) and not isinstance(child, _LIST_CLASSES)
        if nested_blocks:
            blocks += nested_blocks
        elif has_layers and classes[type(child)] > 1:
            blocks.append(child)
    return blocks


def recompute(network: nn.Module) -> None:
    """Let the backward pass recompute the activations of the repeated blocks, one block at a time."""
    for block in find_repeated_blocks(network):
        kind: Any = type(block)
        block.__class__ = _recomputing_class(kind)


def is_recomputed(network: nn.Module) -> bool:
    """Return whether the blocks of a network are recomputed."""
    return any(isinstance(module, RecomputedBlock) for module in network.modules())


class RecomputedBlock(nn.Module):
    """A block that saves only its inputs; gradients, dropout and buffers are the same as without recomputation.

    Raises:
        SpecError: if the block modifies its inputs.
    """

    def forward(self, *inputs: Any, **keywords: Any) -> Any:
        if not (torch.is_grad_enabled() and self.training):
            return super().forward(*inputs, **keywords)
        versions = [(x, x._version) for x in (*inputs, *keywords.values()) if isinstance(x, Tensor)]
        outputs = checkpoint(
            super().forward,
            *inputs,
            use_reentrant=False,
            preserve_rng_state=True,
            context_fn=lambda: _make_contexts(self),
            **keywords,
        )
        if any(x._version != version for x, version in versions):
            # The recomputation would start from modified inputs and silently give a wrong gradient.
            raise SpecError(
                f"optimize.gradient_checkpointing: {type(self).__mro__[2].__name__} modifies its inputs in place",
                "blocks that do not modify their inputs",
                "set it to false, or change the block",
            )
        return outputs


@cache
def _recomputing_class(kind: Any) -> Any:
    # A subclass, because with a new `forward` on the instance a copy of the network would call the original's forward.
    # `disable` does not decorate the method, because it imports the compiler, which takes as long as torch itself.
    forward = torch.compiler.disable(RecomputedBlock.forward)  # type: ignore[no-untyped-call]
    return type(kind.__name__, (RecomputedBlock, kind), {"__module__": kind.__module__, "forward": forward})


def _make_contexts(block: nn.Module) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """Make the contexts of the first pass, which does nothing, and of the recomputation, which copies the buffers."""
    return contextlib.nullcontext(), keeping_buffers(block)


def keeping_buffers(network: nn.Module) -> AbstractContextManager[None]:
    """Return a context that makes the network use copies of its buffers, so a forward pass does not change them."""
    copies: BuffersByModule = {
        module: {name: None if value is None else value.clone() for name, value in module._buffers.items()}
        for module in network.modules()
        if module._buffers
    }
    return _swapping_buffers(copies)


@contextlib.contextmanager
def _swapping_buffers(buffers: BuffersByModule) -> Iterator[None]:
    """Replace the buffers within the block, because BatchNorm has already counted these samples in the first pass."""
    original = {module: module._buffers for module in buffers}
    for module, values in buffers.items():
        module._buffers = values
    try:
        yield
    finally:
        for module, values in original.items():
            module._buffers = values
