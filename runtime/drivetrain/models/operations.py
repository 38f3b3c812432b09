"""Counts the FLOPs per sample of the built-in image networks from their layer sizes.

Convolutions and matrix products are counted, a multiply-add as two operations; a training step takes three times a
forward pass.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from drivetrain.job.workload import format_flop
from drivetrain.models.build import Model
from drivetrain.models.networks import cnn

_NOTED_FLOP_SHARE = 0.5
"""The other stem is mentioned if it needs at most this share of the FLOPs."""


def describe_flop(network: Model) -> str | None:
    """A note on the FLOPs per sample and, for a ResNet, on its stem; None for other networks."""
    module, arguments = network.module, network.arguments
    if not isinstance(module, cnn.SmallCnn | cnn.ResNet):
        return None
    side = arguments["image_size"]
    ours = f"{format_flop(3 * count_forward_flop(module, side))} per training sample"
    if isinstance(module, cnn.SmallCnn):
        return f"{arguments['name']}, {ours}"
    small = isinstance(module.stem[-1], nn.ReLU)
    kind = "small" if small else "large"
    if arguments["stem"] != "auto":
        return f"{arguments['name']} with the {kind} stem, as set in the job, {ours}"
    bound = cnn.MAX_SMALL_IMAGE_SIDE
    reason = f"as image_size {side} is {'at most' if small else 'more than'} {bound}"
    costs = count_stem_flop(network)
    return f"{arguments['name']} with the {kind} stem, {reason}, {ours}{_describe_large_stem(costs) if costs else ''}"


def count_stem_flop(network: Model) -> dict[str, object] | None:
    """FLOPs per training sample with the small stem, if `auto` chose it, and with the large one.

    None if the large stem, which works at a sixteenth of the pixels, saves less than half.
    """
    module, arguments = network.module, network.arguments
    if not isinstance(module, cnn.ResNet) or arguments["stem"] != "auto" or not isinstance(module.stem[-1], nn.ReLU):
        return None
    with torch.random.fork_rng(devices=[]):
        stem = cnn.build_stem(arguments["channels"], arguments["width"] or 64, small=False)
    theirs, ours = (
        count_forward_flop(module, arguments["image_size"], stem),
        count_forward_flop(module, arguments["image_size"]),
    )
    return (
        {"name": arguments["name"], "small": 3 * ours, "large": 3 * theirs}
        if theirs <= _NOTED_FLOP_SHARE * ours
        else None
    )


def _describe_large_stem(costs: dict[str, Any]) -> str:
    return f"; {format_flop(costs['large'])} with model: {{name: {costs['name']}, stem: large}}, which learns otherwise"


def count_forward_flop(module: cnn.SmallCnn | cnn.ResNet, side: int, stem: nn.Module | None = None) -> int:
    """FLOPs of a forward pass for a square image of `side` pixels; `stem` replaces the network's own stem."""
    parts = [module.features] if isinstance(module, cnn.SmallCnn) else [stem or module.stem, module.stages]
    count = 2 * module.classifier.in_features * module.classifier.out_features
    for part in parts:
        part_count, side = _count_module_flop(part, side)
        count += part_count
    return count


def _count_module_flop(module: nn.Module, side: int) -> tuple[int, int]:
    """FLOPs of a module, and the side of its output in pixels."""
    if isinstance(module, nn.Sequential):
        count = 0
        for part in module:
            part_count, side = _count_module_flop(part, side)
            count += part_count
        return count, side
    if isinstance(module, cnn.BasicBlock | cnn.Bottleneck):
        (main, after), (short, _) = _count_module_flop(module.main, side), _count_module_flop(module.shortcut, side)
        return main + short, after
    if isinstance(module, nn.Conv2d):
        kernel, stride, padding = module.kernel_size[0], module.stride[0], int(module.padding[0])
        side = (side + 2 * padding - kernel) // stride + 1
        return 2 * module.in_channels * module.out_channels * kernel**2 * side**2, side
    if isinstance(module, nn.MaxPool2d):
        return 0, (side + 1) // 2  # all strided layers here halve the side and round up
    return 0, side
