"""Packed: the layers of an encoder over the tokens of several texts in one row; only attention goes text by text.

All else in a layer looks at one token at a time and needs no padding (as in J. Portes et al. 2023, MosaicBERT). For
attention, texts of like length stand together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from runtime.data.text import length_buckets
from runtime.data.to_device import onto
from runtime.models.frozen_split import CLOSE, evaluating, tensors

NAME = "drivetrain_packed"
"""Of the attention, as transformers finds it."""
KINDS = ("bert", "camembert", "distilbert", "electra", "roberta", "xlm-roberta")
"""Encoders in which attention is all that tokens have to do with each other, with nothing that counts places."""
SIZES = 64
"""Tokens of a row are rounded up to a multiple of this: a library makes its kernels anew for each size."""
GROUP = 512
"""Tokens of texts that attend together at most, padding included."""


@dataclass(frozen=True)
class TextGroup:
    """Texts that stand side by side in a row and attend together."""

    start: int
    end: int
    texts: int
    longest: int
    index: Tensor
    """Where its tokens lie among (texts x longest)."""
    real: Tensor | None
    """(texts, 1, 1, longest), true for a token; None if all are equally long."""


@dataclass(frozen=True)
class PackedRow:
    """How the tokens of texts, (N, tokens) with the real ones first, stand in one row."""

    index: Tensor
    """Where each token of the row lies among (N x tokens)."""
    size: int
    """Tokens of the row, with what rounds it up."""
    groups: tuple[TextGroup, ...]


def row(mask: Tensor) -> PackedRow:
    """The row of texts with this mask, (N, tokens)."""
    lengths, width = mask.sum(dim=1).cpu().numpy(), mask.shape[1]
    index, groups, start = [], [], 0
    for texts in length_buckets.pieces(lengths, len(lengths), GROUP):
        longest, end = int(lengths[texts].max()), start + int(lengths[texts].sum())
        if longest == 0:
            break  # the rest is empty, too: they come by length
        real = np.arange(longest) < lengths[texts][:, None]
        index.append((texts[:, None] * width + np.arange(longest))[real])
        seen = None if real.all() else onto(mask.device, real)[:, None, None]
        groups.append(TextGroup(start, end, len(texts), longest, onto(mask.device, np.flatnonzero(real)), seen))
        start = end
    return PackedRow(onto(mask.device, np.concatenate(index)), -(-start // SIZES) * SIZES, tuple(groups))


def through(layers: Callable[..., Any], config: Any, hidden: Tensor, mask: Tensor) -> Tensor:
    """Hidden states behind the layers, (N, tokens, width); zero where there is no token.

    Args:
        layers: of an encoder, which take `inputs_embeds` and give `last_hidden_state`.
        config: theirs.
        hidden: what enters the first of them, (N, tokens, width).
        mask: (N, tokens), the real tokens first.
    """
    _attend_by(config)
    here, flat = row(mask), hidden.flatten(0, 1)
    entering = functional.pad(_taken(flat, here.index), (0, 0, 0, here.size - len(here.index)))
    left = layers(inputs_embeds=entering[None], packed_row=here).last_hidden_state[0]
    return _put(left[: len(here.index)], here.index, len(flat)).view_as(hidden)


def _attend_by(config: Any) -> None:
    """Let an encoder attend by `attend`, which does as before where there is no row."""
    if config._attn_implementation != NAME:
        from transformers import AttentionInterface, AttentionMaskInterface
        from transformers.masking_utils import sdpa_mask

        AttentionInterface.register(NAME, attend)
        AttentionMaskInterface.register(NAME, sdpa_mask)
        config._attn_implementation = NAME


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    dropout: float = 0.0,
    scaling: float | None = None,
    packed_row: PackedRow | None = None,
    **more: Any,
) -> tuple[Tensor, Tensor | None]:
    """Attention within each text of a row; transformers' own where there is none.

    Args:
        query, key, value: (1, heads, tokens, width of a head).

    Returns:
        (1, tokens, heads, width of a head), and no weights.
    """
    if packed_row is None:
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        found: tuple[Tensor, Tensor | None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **more
        )
        return found
    _, heads, tokens, width = query.shape
    flat = [x[0].transpose(0, 1).reshape(tokens, heads * width) for x in (query, key, value)]
    seen = [_within(module, group, flat, heads, dropout, scaling) for group in packed_row.groups]
    rest = tokens - packed_row.groups[-1].end
    return functional.pad(torch.cat(seen), (0, 0, 0, rest)).view(1, tokens, heads, width), None


def _within(
    module: nn.Module, group: TextGroup, flat: list[Tensor], heads: int, dropout: float, scaling: float | None
) -> Tensor:
    """Attention of a group, (tokens, heads x width of a head), from query, key and value of the whole row in that form."""
    parts = [x[group.start : group.end] for x in flat]
    if group.real is not None:
        parts = [_put(x, group.index, group.texts * group.longest) for x in parts]
    shape = (group.texts, group.longest, heads, flat[0].shape[1] // heads)
    query, key, value = (x.view(shape).transpose(1, 2) for x in parts)
    if dropout:
        found = _dropping(module, query, key, value, group.real, dropout, scaling)
    else:
        found = functional.scaled_dot_product_attention(query, key, value, group.real, scale=scaling)
    found = found.transpose(1, 2).reshape(-1, flat[0].shape[1])
    return found if group.real is None else _taken(found, group.index)


def _dropping(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    real: Tensor | None,
    dropout: float,
    scaling: float | None,
) -> Tensor:
    """Attention with dropout: torch has no fused kernel for it on a CPU, and its plain one draws numbers one by one."""
    scores = (query * (query.shape[-1] ** -0.5 if scaling is None else scaling)) @ key.transpose(2, 3)
    if real is not None:
        scores = scores.masked_fill(~real, float("-inf"))
    weights, layer = functional.softmax(scores, dim=-1, dtype=torch.float32), getattr(module, "dropout", None)
    kept = layer(weights) if isinstance(layer, nn.Dropout) else functional.dropout(weights, dropout)
    return kept.to(value.dtype) @ value


def _put(rows: Tensor, index: Tensor, size: int) -> Tensor:
    """Rows (n, width) at places of their own among zeros, (size, width)."""
    return _ScatterRows.apply(rows, index, size)  # type: ignore[no-any-return, no-untyped-call]


def _taken(rows: Tensor, index: Tensor) -> Tensor:
    """Rows of (size, width), none of them twice: the backward pass has nothing to add up."""
    return _GatherRows.apply(rows, index)  # type: ignore[no-any-return, no-untyped-call]


class _ScatterRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, index: Tensor, size: int) -> Tensor:
        ctx.save_for_backward(index)
        return rows.new_zeros(size, rows.shape[1]).index_copy_(0, index, rows)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return gradient[ctx.saved_tensors[0]], None, None


class _GatherRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, index: Tensor) -> Tensor:
        ctx.save_for_backward(index)
        ctx.size = len(rows)
        return rows[index]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient.new_zeros(ctx.size, gradient.shape[1]).index_copy_(0, ctx.saved_tensors[0], gradient), None


def token_bytes(network: Any) -> int:
    """Bytes that a token of a row keeps for the backward pass; 0 if the network cannot be packed, as a trial shows.

    Args:
        network: takes ids and mask, (N, tokens) both, and has `packed`, which takes the same.
    """
    config: Any = getattr(getattr(network, "encoder", None), "config", None)
    if getattr(config, "model_type", None) not in KINDS or getattr(config, "is_decoder", False):
        return 0
    if network not in _tried:
        _tried[network] = _trial(network, config)
    return _tried[network]


_tried: WeakKeyDictionary[nn.Module, int] = WeakKeyDictionary()
"""A large encoder takes a third of a second to try, and several look at what a network is."""


def _trial(network: Any, config: Any) -> int:
    device = next(network.parameters()).device
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]], device=device)
    own = [number for number in range(config.vocab_size) if number != config.pad_token_id][: mask.numel()]
    ids = torch.tensor(own, device=device).view_as(mask).where(mask > 0, config.pad_token_id or 0)
    with evaluating(network), torch.random.fork_rng([device] if device.type == "cuda" else []):
        try:
            return _kept(network, ids, mask) if _alike(network, ids, mask) else 0
        except Exception:  # a library's network that works otherwise may raise anything; padded, it still works
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
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values()) // row(mask).size
