"""Strided 1x1 convolutions of few channels, computed with stride 1 over every n-th pixel: on a CPU torch's kernel is wrong.

oneDNN copies those pixels into a workspace. For the gradient of the weights in the layout channels_last it counts 8
(AVX2) or 16 (AVX-512) channels a pixel where the workspace has room for the real number. With one thread it then writes
past the end of the workspace: `free(): invalid pointer`, exit 134 or 139. With more threads it overwrites the part of
another one: wrong gradients without a word, or a process that hangs. torch 2.13 (oneDNN 3.12) and 2.14 have it:
https://github.com/uxlfoundation/oneDNN/issues/6035. `torch.compile` chooses that layout by itself, so leaving
channels_last off is no cure.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.nn import functional

NARROW = 16
"""Channels from which on the workspace is large enough: those of one AVX-512 register."""


def rewrite(network: nn.Module) -> None:
    """Change how the affected convolutions are computed, in place; the result stays, to rounding.

    Their stride and all other settings stay as they are, since a network of the user's own may read them. What such a
    network computes with `torch.nn.functional` by itself is not changed.
    """
    for module in network.modules():
        if isinstance(module, nn.Conv2d) and _affected(module, module.in_channels):
            module._conv_forward = partial(_thinned, module.stride)  # type: ignore[method-assign]
        elif isinstance(module, nn.ConvTranspose2d) and _affected(module, module.out_channels):
            module.forward = partial(_spread, module)  # type: ignore[method-assign]


def rewritten(network: nn.Module) -> list[str]:
    """The names of the convolutions that are computed in this way."""
    return [name for name, module in network.named_modules() if _method(module)]


def as_before(network: nn.Module) -> None:
    """Torch's own convolutions again, in place."""
    for module in network.modules():
        if name := _method(module):
            delattr(module, name)


def _method(module: nn.Module) -> str | None:
    """The method that stands on this module instead of on its class, if `rewrite` has put one there."""
    for name, ours in (("_conv_forward", _thinned), ("forward", _spread)):
        if getattr(vars(module).get(name), "func", None) is ours:
            return name
    return None


def _affected(module: nn.Conv2d | nn.ConvTranspose2d, channels: int) -> bool:
    """Whether oneDNN may take that kernel; `channels` are those of the strided side."""
    plain = module.groups == 1 and set(module.kernel_size) == {1} and not any(_numbers(module.padding))
    whole = isinstance(module, nn.Conv2d) or all(
        p == s - 1 for p, s in zip(module.output_padding, module.stride, strict=True)
    )
    return plain and whole and channels < NARROW and max(module.stride) > 1


def _numbers(padding: Any) -> tuple[int, ...]:
    return (0,) if padding == "valid" else tuple(padding)


def _thinned(stride: tuple[int, ...], x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    rows, columns = stride
    return functional.conv2d(x[..., ::rows, ::columns], weight, bias)


def _spread(module: nn.ConvTranspose2d, input: Tensor, output_size: list[int] | None = None) -> Tensor:
    if output_size is not None:
        return type(module).forward(module, input, output_size)
    rows, columns = module.stride
    output = functional.conv_transpose2d(input, module.weight)
    *front, height, width = output.shape
    whole = output.new_zeros((*front, height * rows, width * columns))
    whole[..., ::rows, ::columns] = output
    return whole if module.bias is None else whole + module.bias.to(whole.dtype)[:, None, None]
