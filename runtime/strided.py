"""Strided 1x1 convolutions of few channels, computed with stride 1 over every n-th pixel: on a CPU torch's kernel is wrong.

oneDNN copies those pixels into a workspace. For the gradient of the weights in the layout channels_last it counts 8
(AVX2) or 16 (AVX-512) channels a pixel where the workspace has room for the real number. With one thread it then writes
past the end of the workspace: `free(): invalid pointer`, exit 134 or 139. With more threads it overwrites the part of
another one: wrong gradients without a word, or a process that hangs. torch 2.13 (oneDNN 3.12) and 2.14 have it:
https://github.com/uxlfoundation/oneDNN/issues/6035. `torch.compile` chooses that layout by itself, so leaving
channels_last off is no cure.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

NARROW = 16
"""Channels from which on the workspace is large enough: those of one AVX-512 register."""


def rewrite(network: nn.Module) -> None:
    """Change the affected convolutions in place; what they compute stays, to rounding."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d) and _affected(module, module.in_channels):
            handle = module.register_forward_pre_hook(_thin, with_kwargs=True)
        elif isinstance(module, nn.ConvTranspose2d) and _affected(module, module.out_channels):
            handle = module.register_forward_hook(_spread)
        else:
            continue
        # On the module, so that a copy of the network has its own.
        module.strided = module.stride, module.output_padding, handle.id  # type: ignore[assignment]
        module.stride, module.output_padding = (1, 1), (0, 0)


def rewritten(network: nn.Module) -> list[str]:
    """The names of the convolutions that are computed in this way."""
    return [name for name, module in network.named_modules() if hasattr(module, "strided")]


def as_before(network: nn.Module) -> None:
    """Torch's own convolutions again, in place."""
    for module in network.modules():
        if hasattr(module, "strided"):
            module.stride, module.output_padding, hook = module.strided  # type: ignore[misc]
            module._forward_pre_hooks.pop(hook, None)
            module._forward_hooks.pop(hook, None)
            del module.strided


def _affected(module: nn.Conv2d | nn.ConvTranspose2d, channels: int) -> bool:
    """Whether oneDNN may take that kernel; `channels` are those of the strided side."""
    plain = module.groups == 1 and set(module.kernel_size) == {1} and not any(_numbers(module.padding))
    whole = isinstance(module, nn.Conv2d) or all(
        p == s - 1 for p, s in zip(module.output_padding, module.stride, strict=True)
    )
    return plain and whole and channels < NARROW and max(module.stride) > 1


def _numbers(padding: Any) -> tuple[int, ...]:
    return (0,) if padding == "valid" else tuple(padding)


def _thin(
    module: nn.Module, inputs: tuple[Tensor, ...], named: dict[str, Tensor]
) -> tuple[tuple[Tensor], dict[str, Any]]:
    (rows, columns), *_ = module.strided  # type: ignore[misc]
    return ((*inputs, *named.values())[0][..., ::rows, ::columns],), {}


def _spread(module: nn.ConvTranspose2d, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
    (rows, columns), *_ = module.strided  # type: ignore[misc]
    *front, height, width = output.shape
    whole = output.new_zeros((*front, height * rows, width * columns))
    if module.bias is not None:
        whole = whole + module.bias[:, None, None]
    whole[..., ::rows, ::columns] = output
    return whole
