"""Loads pretrained weights of timm and torchvision into the built-in ResNets, which have other layer names."""

from __future__ import annotations

import re
from collections.abc import Mapping

from torch import Tensor, nn

from drivetrain.models import safetensors_file
from drivetrain.tasks.image.expected_input import TimmFolder

_LAYER = re.compile(r"layer(\d+)\.(\d+)\.(conv|bn|downsample\.)(\d+)\.(\w+)")


def translate_name(name: str) -> str:
    """Return the name of a tensor such as `layer2.0.conv1.weight` in our ResNet; empty if it does not exist there."""
    kind, _, suffix = name.partition(".")
    if kind in ("conv1", "bn1"):
        return f"stem.{int(kind == 'bn1')}.{suffix}"
    match = _LAYER.fullmatch(name)
    if match is None:
        return ""
    stage, block, layer, number, value = match.groups()
    prefix = f"stages.{int(stage) - 1}.{block}"
    if layer == "downsample.":
        return f"{prefix}.shortcut.{number}.{value}"
    return f"{prefix}.main.{3 * (int(number) - 1) + int(layer == 'bn')}.{value}"


def rename_tensors(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors with the names of our ResNet, without the classifier."""
    renamed = {translate_name(name): value for name, value in weights.items()}
    renamed.pop("", None)
    return renamed


def load_weights(network: nn.Module, source: TimmFolder) -> set[str]:
    """Load all tensors except the classifier's; returns the names of the tensors that stay random.

    Raises:
        SpecError: if the file cannot be read or has other tensors.
    """
    file = source.folder / "model.safetensors"
    weights = rename_tensors(safetensors_file.read_or_refuse(file, source.refuse))
    names = network.state_dict().keys()
    random_names = {name for name in names if name.startswith("classifier.")}
    wrong = [*safetensors_file.load(network, weights, random_names), *sorted(weights.keys() - names)]
    if wrong:
        source.refuse(
            f"{file} does not fit: {len(wrong)} tensors are missing, unknown or of another shape: {', '.join(wrong[:3])}",
            "weights of the same ResNet, with the names of timm and torchvision",
            "use another folder",
        )
    return random_names
