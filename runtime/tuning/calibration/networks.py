"""The small networks that the probes train: one narrow and one wide for each kind of work that jobs consist of."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from runtime.models import packed_attention
from runtime.models.packed_attention import PackedRow

TEXTS = 24
"""Texts in the batch of the probe of packing."""


@dataclass(frozen=True)
class ProbeNetwork:
    """A network and a batch of random inputs for it."""

    work: str
    module: nn.Module
    inputs: Tensor

    @property
    def size(self) -> int:
        """Weights per layer that has a matrix or kernel."""
        return weights_per_layer(self.module)

    def step(self, dtype: torch.dtype | None = None, *, channels_last: bool = False) -> None:
        """One forward and backward pass; the weights stay as they are.

        Args:
            dtype: of autocast; None for fp32.
            channels_last: whether images are in that layout; the weights must be too.
        """
        device = self.inputs.device.type
        x = self.inputs.contiguous(memory_format=torch.channels_last) if channels_last else self.inputs
        with torch.autocast(device, dtype or torch.bfloat16, enabled=dtype is not None):
            out = self.module(x)
        out.float().square().mean().backward()
        self.module.zero_grad(set_to_none=True)


def weights_per_layer(module: nn.Module) -> int:
    """The mean number of weights of the matrices and kernels of a network."""
    counts = [p.numel() for p in module.parameters() if p.ndim > 1]
    return sum(counts) // max(1, len(counts))


def networks(device: torch.device) -> dict[str, Callable[[], ProbeNetwork]]:
    """How to build each network, by name; `narrow` and `wide` are of the same kind of work."""

    def made(work: str, build: Callable[[], nn.Module], *shape: int) -> Callable[[], ProbeNetwork]:
        # Larger batches for GPUs, whose kernels a small batch does not fill.
        more = 1 if device.type == "cpu" else 8
        return lambda: ProbeNetwork(work, build().to(device), torch.randn(shape[0] * more, *shape[1:], device=device))

    return {
        "convolution narrow": made("convolution", lambda: _convolutions(32, 64, 64), 8, 3, 32, 32),
        "convolution wide": made("convolution", lambda: _convolutions(64, 256, 256), 6, 3, 16, 16),
        "attention narrow": made("attention", lambda: _encoder(128), 8, 32, 128),
        "attention wide": made("attention", lambda: _encoder(320), 5, 32, 320),
        "linear narrow": made("linear", lambda: _layers(64, 256, 256), 512, 64),
        "linear wide": made("linear", lambda: _layers(768, 768, 768), 128, 768),
        "recurrent narrow": made("recurrent", lambda: _Recurrent(64, 128), 64, 16, 64),
        "recurrent wide": made("recurrent", lambda: _Recurrent(256, 320), 24, 8, 256),
    }


def _convolutions(*channels: int) -> nn.Module:
    blocks, before = list[nn.Module](), 3
    for count in channels:
        blocks += [
            nn.Conv2d(before, count, 3, padding=1, bias=False), nn.BatchNorm2d(count), nn.ReLU(), nn.MaxPool2d(2),
        ]  # fmt: skip
        before = count
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, 10))


def _encoder(width: int) -> nn.Module:
    return nn.TransformerEncoderLayer(width, width // 64, 4 * width, dropout=0.0, activation="gelu", batch_first=True)


def _layers(*widths: int) -> nn.Module:
    layers = [part for a, b in itertools.pairwise(widths) for part in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(widths[-1], 10))


class _Recurrent(nn.Module):
    """The last output of an LSTM."""

    def __init__(self, features: int, hidden: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(features, hidden, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.lstm(x)[0][:, -1]  # type: ignore[no-any-return]


class TextLayer(nn.Module):
    """An encoder layer whose attention is the one of packed texts, or the padded one."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.inner = heads, nn.Linear(width, 3 * width)
        self.outer, self.norm = nn.Linear(width, width), nn.LayerNorm(width)
        self.up, self.down, self.last = nn.Linear(width, 4 * width), nn.Linear(4 * width, width), nn.LayerNorm(width)

    def forward(self, x: Tensor, mask: Tensor | None = None, row: PackedRow | None = None) -> Tensor:
        """Hidden states (texts, tokens, width) with their mask, or (1, tokens, width) of a packed row."""
        count, tokens, width = x.shape
        parts = self.inner(x).view(count, tokens, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        query, key, value = parts.unbind()
        if row is not None:
            seen = packed_attention.attend(self, query, key, value, None, packed_row=row)[0]
        else:
            real = None if mask is None else mask[:, None, None].bool()
            seen = functional.scaled_dot_product_attention(query, key, value, real).transpose(1, 2)
        x = self.norm(x + self.outer(seen.reshape(count, tokens, width)))
        return self.last(x + self.down(functional.gelu(self.up(x))))  # type: ignore[no-any-return]


def texts(longest: int = 64) -> Tensor:
    """The mask (texts, tokens) of a batch whose lengths scatter as those of real texts: log-normal, median 14."""
    lengths = torch.exp(torch.randn(TEXTS, generator=torch.Generator().manual_seed(0)) * 0.6 + 2.65)
    lengths = lengths.long().clamp(3, longest)
    return (torch.arange(int(lengths.max())) < lengths[:, None]).long()
