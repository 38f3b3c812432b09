"""Packed (unpadded) encoder layers: the tokens of all texts in one row; only attention works text by text.

All other operations of a layer are per token and need no padding (as in J. Portes et al. 2023, MosaicBERT). For
attention, texts of similar length are grouped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from runtime.data.text import length_buckets
from runtime.data.to_device import onto
from runtime.system import torch_settings

NAME = "drivetrain_packed"
"""Name of the attention function in transformers' registry."""
KINDS = ("bert", "camembert", "distilbert", "electra", "roberta", "xlm-roberta")
"""Encoders in which tokens interact only in attention, and no operation depends on their position in the row."""
SIZES = 64
"""The row is padded to a multiple of this many tokens, because libraries compile kernels for each new size."""
GROUP = 512
"""Largest number of tokens in an attention group, padding included."""


@dataclass(frozen=True)
class TextGroup:
    """Texts that lie next to each other in the row and share one attention call."""

    start: int
    end: int
    texts: int
    longest: int
    index: Tensor
    """Positions of its tokens in the flattened (texts x longest) matrix."""
    real: Tensor | None
    """(texts, 1, 1, longest), true for real tokens; None if all texts are equally long."""


@dataclass(frozen=True)
class PackedRow:
    """How the tokens of a padded batch (N, tokens), real tokens first, are laid out in one row."""

    index: Tensor
    """Position of each token of the row in the flattened (N x tokens) batch."""
    size: int
    """Tokens in the row, rounded up to a multiple of SIZES."""
    groups: tuple[TextGroup, ...]


def row(mask: Tensor) -> PackedRow:
    """Lay out the texts of this mask, (N, tokens)."""
    lengths, width = mask.sum(dim=1).cpu().numpy(), mask.shape[1]
    index, groups, start = [], [], 0
    for texts in length_buckets.pieces(lengths, len(lengths), GROUP):
        longest, end = int(lengths[texts].max()), start + int(lengths[texts].sum())
        if longest == 0:
            break  # texts are sorted by length: the rest is empty, too
        real = np.arange(longest) < lengths[texts][:, None]
        index.append((texts[:, None] * width + np.arange(longest))[real])
        seen = None if real.all() else onto(mask.device, real)[:, None, None]
        groups.append(TextGroup(start, end, len(texts), longest, onto(mask.device, np.flatnonzero(real)), seen))
        start = end
    return PackedRow(onto(mask.device, np.concatenate(index)), -(-start // SIZES) * SIZES, tuple(groups))


def through(layers: Callable[..., Any], config: object, hidden: Tensor, mask: Tensor) -> Tensor:
    """Run the layers on packed tokens: hidden states (N, tokens, width), zero at padding.

    Args:
        layers: encoder layers that take `inputs_embeds` and return `last_hidden_state`.
        config: the encoder's configuration.
        hidden: input of the first layer, (N, tokens, width).
        mask: (N, tokens), the real tokens first.
    """
    _attend_by(config)
    here, flat = row(mask), hidden.flatten(0, 1)
    entering = functional.pad(_taken(flat, here.index), (0, 0, 0, here.size - len(here.index)))
    left = layers(inputs_embeds=entering[None], packed_row=here).last_hidden_state[0]
    return _put(left[: len(here.index)], here.index, len(flat)).view_as(hidden)


def _attend_by(config: Any) -> None:
    """Make an encoder use `attend`, which falls back to the previous attention where no row is passed."""
    if config._attn_implementation != NAME:
        from transformers import AttentionInterface, AttentionMaskInterface
        from transformers.masking_utils import sdpa_mask

        AttentionInterface.register(NAME, attend)
        AttentionMaskInterface.register(NAME, sdpa_mask)
        torch_settings.use_attention_function(config, NAME)


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
    """Attention within each text of a row; the library's attention if there is no row.

    Args:
        query, key, value: (1, heads, tokens, head width).

    Returns:
        (1, tokens, heads, head width), and None for the weights.
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
    """Attention of one group, (tokens, heads x head width); query, key and value of the whole row in the same layout."""
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
    """Attention with dropout. On CPUs torch has no fused kernel for it, and its fallback generates one random number
    per element.
    """
    scores = (query * (query.shape[-1] ** -0.5 if scaling is None else scaling)) @ key.transpose(2, 3)
    if real is not None:
        scores = scores.masked_fill(~real, float("-inf"))
    weights, layer = functional.softmax(scores, dim=-1, dtype=torch.float32), getattr(module, "dropout", None)
    kept = layer(weights) if isinstance(layer, nn.Dropout) else functional.dropout(weights, dropout)
    return kept.to(value.dtype) @ value


def _put(rows: Tensor, index: Tensor, size: int) -> Tensor:
    """Scatter rows (n, width) into zeros, (size, width)."""
    return _ScatterRows.apply(rows, index, size)  # type: ignore[no-any-return, no-untyped-call]


def _taken(rows: Tensor, index: Tensor) -> Tensor:
    """Gather rows of (size, width). No row occurs twice, so the backward pass copies instead of accumulating."""
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
