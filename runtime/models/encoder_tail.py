"""Splits a transformer encoder at a layer: computes the layer's input, and builds the upper layers as a network."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from runtime.data.dataset import Inputs


class _LayerReached(Exception):
    """Raised by a hook to stop the forward pass at a layer."""

    def __init__(self, hidden: Tensor) -> None:
        self.hidden = hidden


class GivenEmbeddings(nn.Module):
    """Replaces the embeddings of an encoder: returns the hidden states that it is given."""

    def forward(self, *args: object, **named: object) -> Tensor:
        """Return the hidden states (N, tokens, width): the only floating-point argument, all others are indices."""
        (hidden,) = [x for x in (*args, *named.values()) if isinstance(x, Tensor) and x.is_floating_point()]
        return hidden


def named(inputs: Inputs) -> dict[str, Tensor]:
    """The inputs of a text network, ids, types if it gets them, and mask, by the names that transformers has for them."""
    ids, *types, mask = inputs
    return {"input_ids": ids, "attention_mask": mask} | ({"token_type_ids": types[0]} if types else {})


def untrained(encoder: nn.Module, layers: nn.ModuleList, inputs: Inputs) -> int:
    """The number of layers, counted from the first, whose output needs no gradient."""
    flows: list[bool] = []
    hooks = [
        layer.register_forward_pre_hook(
            lambda _, args, more: flows.append(_hidden(args, more).requires_grad), with_kwargs=True
        )
        for layer in layers
    ]
    try:
        with torch.enable_grad():
            last = encoder(**named(inputs)).last_hidden_state
    finally:
        for hook in hooks:
            hook.remove()
    return [*flows[1:], last.requires_grad].index(True) if last.requires_grad else len(layers)


def entering(encoder: nn.Module, layer: nn.Module, inputs: Inputs) -> Tensor:
    """The input of a layer: hidden states (N, tokens, width). The layers above are not computed."""

    def reached(_: nn.Module, args: tuple[object, ...], more: dict[str, object]) -> None:
        raise _LayerReached(_hidden(args, more))

    hook = layer.register_forward_pre_hook(reached, with_kwargs=True)
    try:
        encoder(**named(inputs))
    except _LayerReached as found:
        return found.hidden
    finally:
        hook.remove()
    raise AssertionError("an encoder runs through its layers")


def tail(encoder: nn.Module, embeddings: nn.Module, layers: nn.ModuleList, first: int) -> Callable[..., Any]:
    """The encoder without its embeddings and first layers; takes hidden states as `inputs_embeds`.

    It shares the encoder's modules, and so their weights and training mode; only the containers are copied.
    """
    twin = _replaced(encoder, _path(encoder, layers), nn.ModuleList(list(layers)[first:]))
    return _replaced(twin, _path(encoder, embeddings), GivenEmbeddings())


def _hidden(args: tuple[Any, ...], more: dict[str, Any]) -> Tensor:
    return args[0] if args else more["hidden_states"]  # type: ignore[no-any-return]


def _path(root: nn.Module, part: nn.Module) -> list[str]:
    names: list[str] = [name for name, module in root.named_modules() if module is part]
    return names[0].split(".")


def _replaced(module: nn.Module, path: list[str], part: nn.Module) -> nn.Module:
    """Copy the modules along a path and replace the last; all others are shared."""
    twin = copy.copy(module)
    twin._modules = dict(module._modules)
    name, *more = path
    inner = module._modules[name]
    assert inner is not None
    twin._modules[name] = _replaced(inner, more, part) if more else part
    return twin
