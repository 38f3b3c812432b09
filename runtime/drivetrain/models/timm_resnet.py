"""Loads pretrained weights of timm and torchvision into the built-in ResNets, which have other layer names."""

from __future__ import annotations

import re
from collections.abc import Mapping

from torch import Tensor, nn

from drivetrain.models import safetensors_file
from drivetrain.pretrained.image_input import TimmFolder

_LAYER = re.compile(r"layer(\d+)\.(\d+)\.(conv|bn|downsample\.)(\d+)\.(\w+)")


def translate_name(name: str) -> str:
    """Return the name of a tensor such as `layer2.0.conv1.weight` in our ResNet; empty if it does not exist there."""
    kind, _, suffix = name.partition(".")
    if kind in ("conv1", "bn1"):
        return f"stem.{int(kind == 'bn1')}.{suffix}"
    if not (match := _LAYER.fullmatch(name)):
        return ""
    stage, block, part, number, value = match.groups()
    prefix = f"stages.{int(stage) - 1}.{block}"
    if part == "downsample.":
        return f"{prefix}.shortcut.{number}.{value}"
    return f"{prefix}.main.{3 * (int(number) - 1) + int(part == 'bn')}.{value}"


def rename_tensors(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors with the names of our ResNet, without the classifier."""
    return {our_name: value for name, value in weights.items() if (our_name := translate_name(name))}


def load_weights(network: nn.Module, source: TimmFolder) -> set[str]:
    """Load all tensors except the classifier's; returns the names of the tensors that stay random.

    Raises:
        SpecError: if the file cannot be read or has other tensors.
    """
    file = source.folder / "model.safetensors"
    weights = rename_tensors(safetensors_file.read_or_refuse(file, source.refuse))
    names = network.state_dict().keys()
    fresh = {name for name in names if name.startswith("classifier.")}
    if wrong := [*safetensors_file.load(network, weights, fresh), *sorted(weights.keys() - names)]:
        source.refuse(
            f"{file} does not fit: {len(wrong)} tensors are missing, of another shape or too many: {', '.join(wrong[:3])}",
            "weights of this very ResNet, as timm and torchvision name them",
            "use another folder",
        )
    return fresh
