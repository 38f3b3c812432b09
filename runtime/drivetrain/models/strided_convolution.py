"""Works around a oneDNN bug in strided 1x1 convolutions with few channels: they run with stride 1 on a strided view.

oneDNN copies the strided pixels into a workspace. For the weight gradient in channels_last layout it writes 8 (AVX2) or
16 (AVX-512) channels per pixel, although the workspace has room for the real number only. With one thread it writes
past the end of the workspace: `free(): invalid pointer`, exit 134 or 139. With more threads it overwrites values of
another thread, which gives wrong gradients without an error, or a process that hangs. torch 2.13 (oneDNN 3.12) and 2.14
have the bug: https://github.com/uxlfoundation/oneDNN/issues/6035. `torch.compile` chooses this layout by itself, so
turning off channels_last does not help.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.nn import functional

WIDE_ENOUGH_CHANNELS = 16
"""Smallest number of channels (one AVX-512 register) with a large enough workspace."""


def rewrite(network: nn.Module) -> None:
    """Change the computation of the affected convolutions in place; results are the same except for rounding.

    Stride and all other attributes keep their values, because user networks may read them. Direct calls of
    `torch.nn.functional` are not covered.
    """
    for module in network.modules():
        if isinstance(module, nn.Conv2d) and _is_affected(module, module.in_channels):
            module._conv_forward = partial(_convolve_thinned, module.stride)  # type: ignore[method-assign]
        elif isinstance(module, nn.ConvTranspose2d) and _is_affected(module, module.out_channels):
            module.forward = partial(_convolve_spread, module)  # type: ignore[method-assign]


def list_rewritten(network: nn.Module) -> list[str]:
    """List the names of the convolutions that `rewrite` changed."""
    return [name for name, module in network.named_modules() if _find_rewritten_method(module)]


def restore_layers(network: nn.Module) -> None:
    """Undo `rewrite`, in place."""
    for module in network.modules():
        name = _find_rewritten_method(module)
        if name:
            delattr(module, name)


@contextlib.contextmanager
def rewriting(network: nn.Module) -> Iterator[None]:
    """Rewrite the affected convolutions of a network within the block."""
    is_rewritten = bool(list_rewritten(network))  # by the training itself, which keeps them rewritten
    rewrite(network)
    try:
        yield
    finally:
        if not is_rewritten:
            restore_layers(network)


def _find_rewritten_method(module: nn.Module) -> str | None:
    """Find the name of the method that `rewrite` has replaced on this instance; None if there is none."""
    for name, replacement in (("_conv_forward", _convolve_thinned), ("forward", _convolve_spread)):
        if getattr(vars(module).get(name), "func", None) is replacement:
            return name
    return None


def _is_affected(module: nn.Conv2d | nn.ConvTranspose2d, channels: int) -> bool:
    """Return whether oneDNN may use the faulty kernel; `channels` is the number of channels of the strided tensor."""
    is_pointwise = module.groups == 1 and set(module.kernel_size) == {1} and not any(_list_padding(module.padding))
    has_whole_output = isinstance(module, nn.Conv2d) or all(
        p == s - 1 for p, s in zip(module.output_padding, module.stride, strict=True)
    )
    return is_pointwise and has_whole_output and channels < WIDE_ENOUGH_CHANNELS and max(module.stride) > 1


def _list_padding(padding: Any) -> tuple[int, ...]:
    return (0,) if padding == "valid" else tuple(padding)


def _convolve_thinned(stride: tuple[int, ...], x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    rows, columns = stride
    return functional.conv2d(x[..., ::rows, ::columns], weight, bias)


def _convolve_spread(module: nn.ConvTranspose2d, input: Tensor, output_size: list[int] | None = None) -> Tensor:
    if output_size is not None:
        return type(module).forward(module, input, output_size)
    rows, columns = module.stride
    output = functional.conv_transpose2d(input, module.weight)
    *front, height, width = output.shape
    canvas = output.new_zeros((*front, height * rows, width * columns))
    canvas[..., ::rows, ::columns] = output
    return canvas if module.bias is None else canvas + module.bias.to(canvas.dtype)[:, None, None]
