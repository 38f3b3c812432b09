"""Runs encoder layers without padding: the tokens of all texts are in one row, and only attention separates the texts.

All other operations of a layer work on single tokens and need no padding (as in J. Portes et al. 2023, MosaicBERT). On
a GPU one kernel computes the attention of all texts; on a CPU texts of similar length are grouped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.backends import cuda
from torch.nn import functional

from drivetrain.data.dataset import Lengths, onto, read_lengths
from drivetrain.data.text import length_buckets
from drivetrain.system import torch_settings

ATTENTION_NAME = "drivetrain_packed"
"""Name of the attention function in transformers' registry."""
PACKABLE_ENCODERS = ("bert", "camembert", "distilbert", "electra", "roberta", "xlm-roberta")
"""Encoders whose tokens interact only in attention, and whose operations do not depend on positions in the row."""
ROW_MULTIPLE = 64
"""Rows are padded to a multiple of this number of tokens, because libraries compile a kernel for each new size."""
MAX_GROUP_TOKENS = 512
"""Largest number of tokens in an attention group, including padding."""
WIDTH_MULTIPLE = 8
"""Heads are padded with zeros to a multiple of this number of values, which both kernels load at once."""
MAX_FLASH_WIDTH = 192
"""Largest head width with a backward pass of the flash kernel on all chips, with and without dropout."""
MIN_FLASH_CAPABILITY, MIN_EFFICIENT_CAPABILITY = (8, 0), (5, 0)
"""Lowest compute capabilities of the two kernels; the efficient kernel also needs the first one for bf16."""


class Kernel(Protocol):
    """Function that computes the attention of all texts of a row in one call."""

    def __call__(
        self, query: Tensor, key: Tensor, value: Tensor, starts: Tensor, longest: int, dropout: float, scale: float, /
    ) -> Tensor:
        """Compute the attention, (tokens, heads, width).

        Args:
            query, key, value: (tokens, heads, width).
            starts: position of the first token of each text, and the end of the last text, (texts + 1) int32.
            longest: number of tokens of the longest text.
            dropout: probability of dropout.
            scale: factor of the scores.
        """
        ...


def find_kernel(hidden: Tensor, width: int) -> Kernel | None:
    """Find the kernel for hidden states on this device, a head width and the current autocast; None without a GPU.

    They are torch's operators for nested tensors. `torch.nn.attention.varlen` calls the same flash kernel, but without
    dropout, and adds Python code to every layer.
    """
    device = hidden.device
    if device.type != "cuda":
        return None
    dtype = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else hidden.dtype
    may_flash, may_efficient, _ = torch_settings.list_attention_kernels()
    may_flash = may_flash and cuda.is_flash_attention_available()
    return choose_kernel(torch.cuda.get_device_capability(device), dtype, width, may_flash, may_efficient)


def choose_kernel(
    capability: tuple[int, int], dtype: torch.dtype, width: int, may_flash: bool, may_efficient: bool
) -> Kernel | None:
    """Choose the fastest allowed kernel of this chip for this dtype and width; None if there is none."""
    has_flash, is_half = capability >= MIN_FLASH_CAPABILITY, dtype in (torch.float16, torch.bfloat16)
    if may_flash and has_flash and is_half and width <= MAX_FLASH_WIDTH:
        return flash_attention
    takes_dtype = dtype in (torch.float32, torch.float16) or (has_flash and dtype == torch.bfloat16)
    return efficient_attention if may_efficient and capability >= MIN_EFFICIENT_CAPABILITY and takes_dtype else None


def flash_attention(
    query: Tensor, key: Tensor, value: Tensor, starts: Tensor, longest: int, dropout: float, scale: float
) -> Tensor:
    """Compute flash attention (T. Dao 2023), in fp16 and bf16."""
    is_causal, returns_debug_mask = False, False
    attended: Tensor = torch.ops.aten._flash_attention_forward(
        query, key, value, starts, starts, longest, longest, dropout, is_causal, returns_debug_mask, scale=scale
    )[0]
    return attended


def efficient_attention(
    query: Tensor, key: Tensor, value: Tensor, starts: Tensor, longest: int, dropout: float, scale: float
) -> Tensor:
    """Compute memory-efficient attention (M. Rabe and C. Staats 2021), in fp16, bf16 and fp32."""
    with_batch_axis = (x.unsqueeze(0) for x in (query, key, value))
    bias, no_causal_mask = None, 0
    # The backward pass needs the sums of the softmax.
    computes_log_sums = torch.is_grad_enabled() and any(x.requires_grad for x in (query, key, value))
    attended: Tensor = torch.ops.aten._efficient_attention_forward(
        *with_batch_axis,
        bias,
        starts,
        starts,
        longest,
        longest,
        dropout,
        no_causal_mask,
        computes_log_sums,
        scale=scale,
    )[0]
    return attended.squeeze(0)


@dataclass(frozen=True)
class TextGroup:
    """Adjacent texts of the row that share one attention call."""

    start: int
    """Position of its first token in the row."""
    end: int
    texts: int
    """Number of texts."""
    longest: int
    """Number of tokens of the longest text."""
    token_positions: Tensor
    """Positions of its tokens in the flattened (texts x longest) matrix."""
    real: Tensor | None
    """Mask (texts, 1, 1, longest), true for real tokens; None if all texts are equally long."""


@dataclass(frozen=True)
class PackedRow:
    """Positions in one row of the tokens of a padded batch (N, tokens), whose texts begin with their real tokens.

    Attention is computed either by `groups`, or for all texts at once by `kernel`.
    """

    token_positions: Tensor
    """Position of each token of the row in the flattened (N x tokens) batch."""
    size: int
    """Number of tokens in the row, rounded up to a multiple of ROW_MULTIPLE."""
    groups: tuple[TextGroup, ...] = ()
    kernel: Kernel | None = None
    starts: Tensor | None = None
    """For the kernel: first position of each text, then the row's size, int32; padding at the end counts as a text."""
    longest: int = 0
    """For the kernel: number of tokens of the longest of these texts."""


def lay_out(mask: Tensor, kernel: Kernel | None = None) -> PackedRow:
    """Lay out the texts of a mask (N, tokens) in groups, or with a kernel in their order."""
    lengths = read_lengths(mask)
    return _lay_out_groups(mask, lengths) if kernel is None else _lay_out_in_order(mask, lengths, kernel)


def _lay_out_in_order(mask: Tensor, lengths: Lengths, kernel: Kernel) -> PackedRow:
    positions = np.flatnonzero(np.arange(mask.shape[1]) < lengths[:, None])
    count = len(positions)
    size = _round_up(count)
    # The padding counts as a text, because the kernel does not write positions outside of texts, and uninitialized
    # memory would reach the gradients of the weights.
    starts = np.unique(np.concatenate([[0, size], np.cumsum(lengths)]))
    # One copy to the device instead of two.
    positions_and_starts = onto(mask.device, np.concatenate([positions, starts]))
    return PackedRow(
        positions_and_starts[:count],
        size,
        kernel=kernel,
        starts=positions_and_starts[count:].int(),
        longest=int(np.diff(starts).max(initial=0)),
    )


def _lay_out_groups(mask: Tensor, lengths: Lengths) -> PackedRow:
    width = mask.shape[1]
    positions: list[Any] = []
    groups: list[TextGroup] = []
    start = 0
    for texts in length_buckets.pieces(lengths, len(lengths), MAX_GROUP_TOKENS):
        longest = int(lengths[texts].max())
        end = start + int(lengths[texts].sum())
        if longest == 0:
            break  # texts are sorted by length, so all remaining texts are empty too
        is_real = np.arange(longest) < lengths[texts][:, None]
        positions.append((texts[:, None] * width + np.arange(longest))[is_real])
        # Without padding in the group, attention needs no mask and no scattering.
        real = None if is_real.all() else onto(mask.device, is_real)[:, None, None]
        groups.append(TextGroup(start, end, len(texts), longest, onto(mask.device, np.flatnonzero(is_real)), real))
        start = end
    return PackedRow(onto(mask.device, np.concatenate(positions)), _round_up(start), tuple(groups))


def _round_up(tokens: int) -> int:
    return -(-tokens // ROW_MULTIPLE) * ROW_MULTIPLE


def encode_packed(layers: Callable[..., Any], config: Any, hidden: Tensor, mask: Tensor) -> Tensor:
    """Run the layers on packed tokens; returns hidden states (N, tokens, width), zero at padding.

    Args:
        layers: encoder layers that take `inputs_embeds` and return `last_hidden_state`.
        config: configuration of the encoder.
        hidden: input of the first layer, (N, tokens, width).
        mask: (N, tokens), 1 for real tokens, which come first.
    """
    _use_packed_attention(config)
    kernel = find_kernel(hidden, config.hidden_size // config.num_attention_heads)
    packed = lay_out(mask, kernel)
    positions = packed.token_positions
    flat = hidden.flatten(0, 1)
    inputs = functional.pad(_gather_rows(flat, positions), (0, 0, 0, packed.size - len(positions)))
    outputs = layers(inputs_embeds=inputs[None], packed_row=packed).last_hidden_state.squeeze(0)
    return _scatter_rows(outputs[: len(positions)], positions, len(flat)).view_as(hidden)


def _use_packed_attention(config: Any) -> None:
    """Make an encoder use `attend`, which calls the library's attention if no row is passed."""
    if config._attn_implementation != ATTENTION_NAME:
        from transformers import AttentionInterface, AttentionMaskInterface
        from transformers.masking_utils import sdpa_mask

        AttentionInterface.register(ATTENTION_NAME, attend)
        AttentionMaskInterface.register(ATTENTION_NAME, sdpa_mask)
        torch_settings.use_attention_function(config, ATTENTION_NAME)


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
    **keywords: Any,
) -> tuple[Tensor, Tensor | None]:
    """Compute attention within each text of a row, or the library's attention if there is no row.

    Args:
        query, key, value: (1, heads, tokens, head width).

    Returns:
        (1, tokens, heads, head width), and None for the weights.
    """
    if packed_row is None:
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        attended: tuple[Tensor, Tensor | None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **keywords
        )
        return attended
    if packed_row.kernel is not None:
        return _attend_by_kernel(packed_row, query, key, value, dropout, scaling), None
    _, heads, tokens, width = query.shape
    flat = [x[0].transpose(0, 1).reshape(tokens, heads * width) for x in (query, key, value)]
    groups = [_attend_in_group(module, group, flat, heads, dropout, scaling) for group in packed_row.groups]
    unused = tokens - packed_row.groups[-1].end
    return functional.pad(torch.cat(groups), (0, 0, 0, unused)).view(1, tokens, heads, width), None


def _attend_by_kernel(
    packed: PackedRow, query: Tensor, key: Tensor, value: Tensor, dropout: float, scaling: float | None
) -> Tensor:
    """Compute the attention of all texts of a row with its kernel, (1, tokens, heads, head width)."""
    assert packed.kernel is not None
    assert packed.starts is not None
    width = query.shape[-1]
    missing_width = -width % WIDTH_MULTIPLE
    inputs = [x.squeeze(0).transpose(0, 1) for x in (query, key, value)]
    if missing_width:
        inputs = [functional.pad(x, (0, missing_width)) for x in inputs]
    query, key, value = inputs
    # The scale depends on the width before padding, which must not change the scores.
    scale = width**-0.5 if scaling is None else scaling
    return packed.kernel(query, key, value, packed.starts, packed.longest, dropout, scale)[..., :width].unsqueeze(0)


def _attend_in_group(
    module: nn.Module, group: TextGroup, flat: list[Tensor], heads: int, dropout: float, scaling: float | None
) -> Tensor:
    """Compute the attention of one group, (tokens, heads x head width), from query, key and value of the whole row."""
    inputs = [x[group.start : group.end] for x in flat]
    if group.real is not None:
        inputs = [_scatter_rows(x, group.token_positions, group.texts * group.longest) for x in inputs]
    shape = (group.texts, group.longest, heads, flat[0].shape[1] // heads)
    query, key, value = (x.view(shape).transpose(1, 2) for x in inputs)
    if dropout:
        attended = _attend_with_dropout(module, query, key, value, group.real, dropout, scaling)
    else:
        attended = functional.scaled_dot_product_attention(query, key, value, group.real, scale=scaling)
    attended = attended.transpose(1, 2).reshape(-1, flat[0].shape[1])
    return attended if group.real is None else _gather_rows(attended, group.token_positions)


def _attend_with_dropout(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    real: Tensor | None,
    dropout: float,
    scaling: float | None,
) -> Tensor:
    """Compute attention with dropout on CPUs, where torch has no fused kernel and draws a random number per element."""
    scores = (query * (query.shape[-1] ** -0.5 if scaling is None else scaling)) @ key.transpose(2, 3)
    if real is not None:
        scores = scores.masked_fill(~real, float("-inf"))
    weights = functional.softmax(scores, dim=-1, dtype=torch.float32)
    # The layer may have a dropout with faster random numbers.
    layer = getattr(module, "dropout", None)
    dropped = layer(weights) if isinstance(layer, nn.Dropout) else functional.dropout(weights, dropout)
    return dropped.to(value.dtype) @ value


def _scatter_rows(rows: Tensor, index: Tensor, size: int) -> Tensor:
    """Copy rows (n, width) to positions `index` of a tensor of zeros, (size, width)."""
    return _ScatterRows.apply(rows, index, size)  # type: ignore[no-any-return, no-untyped-call]


def _gather_rows(rows: Tensor, index: Tensor) -> Tensor:
    """Copy rows of a tensor (size, width). No row occurs twice, so the backward pass copies and does not accumulate."""
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
