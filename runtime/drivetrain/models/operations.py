"""Counts the FLOPs per sample of the built-in image networks from their layer sizes.

Only convolutions and matrix products count, a multiply-add as two operations. A training step takes three times the
FLOPs of a forward pass.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from drivetrain.job.workload import format_flop
from drivetrain.models.build import BuiltModel
from drivetrain.models.networks import cnn

_NOTED_FLOP_SHARE = 0.5
"""Largest share of the small stem's FLOPs at which the large stem is mentioned."""


def describe_flop(built_model: BuiltModel) -> str | None:
    """Describe the FLOPs per sample, and the stem of a ResNet; None for other networks."""
    module, arguments = built_model.module, built_model.arguments
    if not isinstance(module, cnn.SmallCnn | cnn.ResNet):
        return None
    image_size = arguments["image_size"]
    flop = f"{format_flop(3 * count_forward_flop(module, image_size))} per training sample"
    if isinstance(module, cnn.SmallCnn):
        return f"{arguments['name']}, {flop}"
    is_small = _has_small_stem(module)
    stem = "small" if is_small else "large"
    if arguments["stem"] != "auto":
        return f"{arguments['name']} with the {stem} stem, as set in the job, {flop}"
    reason = f"as image_size {image_size} is {'at most' if is_small else 'more than'} {cnn.MAX_SMALL_IMAGE_SIDE}"
    stem_flop = count_stem_flop(built_model)
    large_stem = _describe_large_stem(stem_flop) if stem_flop else ""
    return f"{arguments['name']} with the {stem} stem, {reason}, {flop}{large_stem}"


def _has_small_stem(network: cnn.ResNet) -> bool:
    # The large stem ends with max pooling.
    return isinstance(network.stem[-1], nn.ReLU)


def count_stem_flop(built_model: BuiltModel) -> dict[str, object] | None:
    """Count the FLOPs per training sample with the small stem, if `auto` chose it, and with the large stem.

    The result is None if the large stem saves less than half; layers after it have a sixteenth of the pixels.
    """
    module, arguments = built_model.module, built_model.arguments
    if not isinstance(module, cnn.ResNet) or arguments["stem"] != "auto" or not _has_small_stem(module):
        return None
    with torch.random.fork_rng(devices=[]):
        large_stem = cnn.build_stem(arguments["channels"], arguments["width"] or 64, small=False)
    image_size = arguments["image_size"]
    large, small = count_forward_flop(module, image_size, large_stem), count_forward_flop(module, image_size)
    if large > _NOTED_FLOP_SHARE * small:
        return None
    return {"name": arguments["name"], "small": 3 * small, "large": 3 * large}


def _describe_large_stem(costs: dict[str, Any]) -> str:
    return (
        f"; {format_flop(costs['large'])} with model: {{name: {costs['name']}, stem: large}}, which learns differently"
    )


def count_forward_flop(module: cnn.SmallCnn | cnn.ResNet, side: int, stem: nn.Module | None = None) -> int:
    """Count the FLOPs of a forward pass for a square image of `side` pixels; `stem` replaces the network's own stem."""
    layers = [module.features] if isinstance(module, cnn.SmallCnn) else [stem or module.stem, module.stages]
    count, _ = _count_module_flop(nn.Sequential(*layers), side)
    return count + 2 * module.classifier.in_features * module.classifier.out_features


def _count_module_flop(module: nn.Module, side: int) -> tuple[int, int]:
    """Count the FLOPs of a module for an input of `side` pixels, and the side of its output in pixels."""
    if isinstance(module, nn.Sequential):
        count = 0
        for layer in module:
            layer_count, side = _count_module_flop(layer, side)
            count += layer_count
        return count, side
    if isinstance(module, cnn.BasicBlock | cnn.Bottleneck):
        main_count, output_side = _count_module_flop(module.main, side)
        shortcut_count, _ = _count_module_flop(module.shortcut, side)
        return main_count + shortcut_count, output_side
    if isinstance(module, nn.Conv2d):
        kernel, stride, padding = module.kernel_size[0], module.stride[0], int(module.padding[0])
        side = (side + 2 * padding - kernel) // stride + 1
        return 2 * module.in_channels * module.out_channels * kernel**2 * side**2, side
    if isinstance(module, nn.MaxPool2d):
        return 0, (side + 1) // 2  # all strided layers here halve the side and round up
    return 0, side
