"""Tries whether an encoder computes the same with packed texts, and counts the memory of a packed token."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from runtime.models import packed_attention
from runtime.models.frozen_split import CLOSE, evaluating, tensors


def token_bytes(network: Any) -> int:
    """Bytes per packed token that are saved for the backward pass; 0 if a trial shows that packing is not possible.

    Args:
        network: takes ids and mask, both (N, tokens), and has a `packed` method with the same signature.
    """
    config: Any = getattr(getattr(network, "encoder", None), "config", None)
    if getattr(config, "model_type", None) not in packed_attention.KINDS or getattr(config, "is_decoder", False):
        return 0
    if network not in _tried:
        _tried[network] = _trial(network, config)
    return _tried[network]


_tried: WeakKeyDictionary[nn.Module, int] = WeakKeyDictionary()
"""Results by network: a trial of a large encoder takes a third of a second, and several callers ask."""


def _trial(network: Any, config: Any) -> int:
    device = next(network.parameters()).device
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]], device=device)
    own = [number for number in range(config.vocab_size) if number != config.pad_token_id][: mask.numel()]
    ids = torch.tensor(own, device=device).view_as(mask).where(mask > 0, config.pad_token_id or 0)
    with evaluating(network), torch.random.fork_rng([device] if device.type == "cuda" else []):
        try:
            return _kept(network, ids, mask) if _alike(network, ids, mask) else 0
        except Exception:  # a third-party network can raise anything here; padded, it still trains
            return 0


@torch.no_grad()
def _alike(network: Any, ids: Tensor, mask: Tensor) -> bool:
    pairs = zip(*(tensors(call(ids, mask)) for call in (network, network.packed)), strict=True)
    return all(float((one - two).abs().max()) <= CLOSE * max(1.0, float(one.abs().max())) for one, two in pairs)


def _kept(network: Any, ids: Tensor, mask: Tensor) -> int:
    kept: dict[int, Tensor] = {}
    own = {x.untyped_storage()._cdata for x in (*network.parameters(), *network.buffers())}

    def keep(tensor: Tensor) -> Tensor:
        if tensor.untyped_storage()._cdata not in own:
            kept[tensor.untyped_storage()._cdata] = tensor.detach()
        return tensor

    network.train()
    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        network.packed(ids, mask)
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values()) // packed_attention.row(mask).size
