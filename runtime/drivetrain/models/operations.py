"""Counts the FLOPs per sample of the built-in image networks.

Only convolutions and matrix products count, a multiply-add as two operations. A training step takes three times the FLOPs
of a forward pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from drivetrain.job.workload import format_flop
from drivetrain.models.build import Model
from drivetrain.models.flop_counter import count_flops
from drivetrain.models.networks import cnn

_NOTED_FLOP_SHARE = 0.5
"""The large stem is mentioned if it needs at most this share of the small one's FLOPs."""


def describe_flop(network: Model) -> str | None:
    """Describe the FLOPs per sample and, of a ResNet, the stem; None for other networks."""
    module, arguments = network.module, network.arguments
    if not isinstance(module, cnn.SmallCnn | cnn.ResNet):
        return None
    flop = f"{format_flop(3 * count_forward_flop(arguments))} per training sample"
    if isinstance(module, cnn.SmallCnn):
        return f"{arguments['name']}, {flop}"
    is_small = _has_small_stem(module)
    stem = "small" if is_small else "large"
    if arguments["stem"] != "auto":
        return f"{arguments['name']} with the {stem} stem, as set in the job, {flop}"
    reason = f"as image_size {arguments['image_size']} is {'at most' if is_small else 'more than'} {cnn.MAX_SMALL_IMAGE_SIDE}"
    stem_flop = count_stem_flop(network)
    large_stem = _describe_large_stem(stem_flop) if stem_flop else ""
    return f"{arguments['name']} with the {stem} stem, {reason}, {flop}{large_stem}"


def _has_small_stem(network: cnn.ResNet) -> bool:
    # The large stem ends with max pooling.
    return isinstance(network.stem[-1], nn.ReLU)


def count_stem_flop(network: Model) -> dict[str, object] | None:
    """Count the FLOPs per training sample with the small stem, if `auto` chose it, and with the large one.

    None if the large stem saves less than half; the layers behind it have a sixteenth of the pixels.
    """
    module, arguments = network.module, network.arguments
    if not isinstance(module, cnn.ResNet) or arguments["stem"] != "auto" or not _has_small_stem(module):
        return None
    large, small = count_forward_flop({**arguments, "stem": "large"}), count_forward_flop(arguments)
    if large > _NOTED_FLOP_SHARE * small:
        return None
    return {"name": arguments["name"], "small": 3 * small, "large": 3 * large}


def _describe_large_stem(costs: dict[str, Any]) -> str:
    return f"; {format_flop(costs['large'])} with model: {{name: {costs['name']}, stem: large}}, which learns otherwise"


def count_forward_flop(arguments: Mapping[str, Any]) -> int:
    """Count the FLOPs of a forward pass of an image network with these arguments; allocates no memory for it."""
    with torch.device("meta"), torch.random.fork_rng(devices=[]):
        network = cnn.build(**arguments).eval()
        image = torch.empty(1, arguments["channels"], arguments["image_size"], arguments["image_size"])
    with torch.no_grad(), count_flops() as counter:
        network(image)
    return int(counter.get_total_flops())
