"""Tail: the layers of a transformer encoder from one on, with shared weights, and what enters that layer."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


class _LayerReached(Exception):
    """A layer was reached."""

    def __init__(self, hidden: Tensor) -> None:
        self.hidden = hidden


class GivenEmbeddings(nn.Module):
    """Stands where the embeddings were: the hidden states come from outside, complete."""

    def forward(self, *args: Any, **named: Any) -> Tensor:
        """Hidden states (N, tokens, width): of what embeddings are called with, the one thing that is no index."""
        (hidden,) = [x for x in (*args, *named.values()) if isinstance(x, Tensor) and x.is_floating_point()]
        return hidden


def untrained(encoder: nn.Module, layers: nn.ModuleList, ids: Tensor, mask: Tensor) -> int:
    """How many layers, from the first on, give hidden states that no gradient flows through."""
    flows: list[bool] = []
    hooks = [
        layer.register_forward_pre_hook(
            lambda _, args, more: flows.append(_hidden(args, more).requires_grad), with_kwargs=True
        )
        for layer in layers
    ]
    try:
        with torch.enable_grad():
            last = encoder(input_ids=ids, attention_mask=mask).last_hidden_state
    finally:
        for hook in hooks:
            hook.remove()
    return [*flows[1:], last.requires_grad].index(True) if last.requires_grad else len(layers)


def entering(encoder: nn.Module, layer: nn.Module, ids: Tensor, mask: Tensor) -> Tensor:
    """The hidden states that enter a layer, (N, tokens, width); what lies behind it is not computed."""

    def reached(_: nn.Module, args: tuple[Any, ...], more: dict[str, Any]) -> None:
        raise _LayerReached(_hidden(args, more))

    hook = layer.register_forward_pre_hook(reached, with_kwargs=True)
    try:
        encoder(input_ids=ids, attention_mask=mask)
    except _LayerReached as found:
        return found.hidden
    finally:
        hook.remove()
    raise AssertionError("an encoder runs through its layers")


def tail(encoder: nn.Module, embeddings: nn.Module, layers: nn.ModuleList, first: int) -> Callable[..., Any]:
    """The encoder without its embeddings and its first layers; takes hidden states as `inputs_embeds`.

    Its modules are those of the encoder, so that training mode and weights are shared; only what holds them is new.
    """
    twin = _replaced(encoder, _path(encoder, layers), nn.ModuleList(list(layers)[first:]))
    return _replaced(twin, _path(encoder, embeddings), GivenEmbeddings())


def _hidden(args: tuple[Any, ...], more: dict[str, Any]) -> Tensor:
    return args[0] if args else more["hidden_states"]  # type: ignore[no-any-return]


def _path(root: nn.Module, part: nn.Module) -> list[str]:
    names: list[str] = [name for name, module in root.named_modules() if module is part]
    return names[0].split(".")


def _replaced(module: nn.Module, path: list[str], part: nn.Module) -> nn.Module:
    """A copy of the modules along a path, all others shared."""
    twin = copy.copy(module)
    twin._modules = dict(module._modules)
    name, *more = path
    inner = module._modules[name]
    assert inner is not None
    twin._modules[name] = _replaced(inner, more, part) if more else part
    return twin
