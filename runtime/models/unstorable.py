"""Refuses networks of the user that cannot be copied, optimized or stored, before the first step and with what to do."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from runtime.data.custom.arrays import described
from runtime.data.custom.loss_division import Refuse
from runtime.data.custom.user_errors import blamed

_OLD_NORMS = ("WeightNorm", "SpectralNorm")
"""Hooks of torch.nn.utils.weight_norm and spectral_norm, which keep the computed weight as an attribute."""


def check(module: nn.Module, name: str, refuse: Refuse) -> None:
    """Check a network after a forward pass.

    Args:
        module: the network.
        name: of it, for messages.
        refuse: makes the error.

    Raises:
        SpecError: if a copy, an optimizer or a checkpoint cannot take it as it is.
    """
    if isinstance(module, torch.jit.ScriptModule):
        raise refuse(
            f"{name} is a {type(module).__name__} of torch.jit, whose weights no optimizer here can update",
            "a network in Python",
            "return the module itself; optimize.compile compiles it",
        )
    for key, value in module.state_dict(keep_vars=True).items():
        _check_value(key, value, name, refuse)
    for path, layer in module.named_modules():
        _check_attributes(path, layer, name, refuse)
    tensors = {id(each): each for each in (*module.parameters(), *module.buffers())}
    with blamed(lambda told, do: refuse(f"{name} cannot be copied: copy.deepcopy raised {told}", "", do)):
        copy.deepcopy(module, dict(tensors))  # without its weights: it takes no memory


def _check_value(key: str, value: object, name: str, refuse: Refuse) -> None:
    """Check an entry of the state dict."""
    if not isinstance(value, Tensor):
        layer = key.removesuffix("_extra_state").rstrip(".") or "itself"
        raise refuse(
            f"{name}: get_extra_state() of {layer} gives {described(value)}",
            "tensors in the state of every layer: checkpoints hold nothing else",
            "keep it in a buffer: self.register_buffer(NAME, torch.tensor(VALUE))",
        )
    if value.is_complex():
        raise refuse(
            f"{name}: {key} has complex numbers",
            "real parameters and buffers",
            "keep real and imaginary part, (..., 2), and compute with torch.view_as_complex",
        )
    if value.layout != torch.strided or value.is_quantized:
        kind = "quantized" if value.is_quantized else str(value.layout).removeprefix("torch.")
        raise refuse(f"{name}: {key} is {kind}", "dense tensors", "train the dense network, and convert it afterwards")


def _check_attributes(path: str, layer: nn.Module, name: str, refuse: Refuse) -> None:
    """Check that a layer keeps no tensor whose graph would be copied with it."""
    for key, value in vars(layer).items():
        if not isinstance(value, Tensor) or value.is_leaf:
            continue
        place = f"{path}.{key}" if path else key
        old = next(
            (type(h).__name__ for h in layer._forward_pre_hooks.values() if type(h).__name__ in _OLD_NORMS), None
        )
        if old:
            function = {"WeightNorm": "weight_norm", "SpectralNorm": "spectral_norm"}[old]
            raise refuse(
                f"{name}: {place} is kept by torch.nn.utils.{function}, which torch can neither copy nor load",
                "the parametrization of the same name",
                f"use torch.nn.utils.parametrizations.{function}",
            )
        raise refuse(
            f"{name}: {place} is a tensor of the last forward pass, whose graph cannot be copied",
            "attributes without a graph",
            f"keep self.{key} = VALUE.detach(), or do not keep it",
        )
