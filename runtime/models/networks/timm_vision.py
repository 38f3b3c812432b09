"""Image networks from the timm library."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from runtime.errors import SpecError
from runtime.job.images import ImageJob
from runtime.job.model import ImageTimm
from runtime.models import safetensors_file
from runtime.models.networks import timm_library
from runtime.pretrained.timm_folder import TimmFolder

_ARCHITECTURE = re.compile(r"[\w.]+")


def build(*, name: str, classes: int, channels: int, image_size: int, dropout: float) -> nn.Module:
    """Build a network with random weights; input (N, channels, H, W), output (N, classes).

    Raises:
        SpecError: if timm cannot be imported.
        RuntimeError: if timm has no such architecture.
        ValueError: if the name is no architecture, but an address of the hub or a folder, which timm would read.
    """
    if not _ARCHITECTURE.fullmatch(name):
        raise ValueError(f"{name!r} is not the name of an architecture")
    timm = timm_library.load()
    fixed = timm.get_pretrained_cfg(name, allow_unregistered=True)
    size = {"img_size": image_size} if fixed is not None and fixed.fixed_input_size else {}
    made: nn.Module = timm.create_model(
        name, pretrained=False, num_classes=classes, in_chans=channels, drop_rate=dropout, **size
    )
    return made


def from_spec(job: ImageJob, spec: ImageTimm, arguments: dict[str, Any]) -> nn.Module:
    """Build the network of a job, with the weights it names.

    Raises:
        SpecError: if timm cannot be imported, or has no such architecture, or the weights do not fit.
    """
    known = timm_library.load().list_models()
    if spec.name not in known and spec.name.split(".")[0] not in known:
        near = ", ".join(difflib.get_close_matches(spec.name, known, 3)) or "timm.list_models() lists them"
        raise SpecError(
            [
                job.problem(
                    ("model", "name"),
                    f"timm has no network {spec.name!r}",
                    f"one of its {len(known):,} architectures",
                    near,
                )
            ]
        )
    try:
        network = build(**arguments)
        network.eval()
        with torch.inference_mode():
            network(torch.zeros(1, arguments["channels"], arguments["image_size"], arguments["image_size"]))
    except SpecError:
        raise
    except Exception as error:  # architectures of the library raise anything
        size = arguments["image_size"]
        raise SpecError(
            [
                job.problem(
                    ("model", "name"),
                    f"{spec.name} does not accept images of {size} pixels a side: {type(error).__name__}: {str(error)[:200]}",
                    "the size the network was made for",
                    "change data.image_size",
                )
            ]
        ) from None
    if spec.weights:
        _fill(job, spec.weights, network)
    return network.train()


def fill(network: nn.Module, found: TimmFolder) -> set[str]:
    """Load all tensors but the classifier's from a folder of timm; returns those that stay random.

    Raises:
        SpecError: if the file cannot be read, or has other tensors.
    """
    file = found.folder / "model.safetensors"
    try:
        weights = safetensors_file.read(file)
    except (OSError, ValueError) as error:
        found.refuse(f"{file} cannot be read: {error}", "a complete file", "copy it again")
    if wrong := _filled(network, weights):
        found.refuse(
            f"{file} does not fit: {len(wrong)} tensors are missing or of another shape: {', '.join(wrong[:3])}",
            "weights of this architecture, and for some the image_size of its training",
            "leave out data.image_size, or use another folder",
        )
    return {name for name in network.state_dict() if name.startswith(_classifier(network))}


def _fill(job: ImageJob, name: str, network: nn.Module) -> None:
    """Load all weights but the classifier's, which was trained for other classes, from the file of a job."""
    key, where = ("model", "weights"), job.resolve(name)
    if where.suffix != ".safetensors":
        given, action = f"{where} is not a .safetensors file", f"run `drivetrain convert {where}`"
        raise SpecError([job.problem(key, given, "weights without pickle", action)])
    try:
        weights = safetensors_file.read(where)
    except (OSError, ValueError) as error:
        raise SpecError(
            [job.problem(key, f"{where} cannot be read: {error}", "a complete file", "download it again")]
        ) from None
    if wrong := _filled(network, weights):
        given = f"{where} does not fit: {len(wrong)} tensors are missing or of another shape: {', '.join(wrong[:3])}"
        action = "check that both come from the same network"
        raise SpecError([job.problem(key, given, "weights of this architecture", action)])


def _filled(network: nn.Module, weights: Mapping[str, torch.Tensor]) -> list[str]:
    """Load all tensors but the classifier's; returns the names of those that do not fit, and then loads none."""
    own, head = network.state_dict(), _classifier(network)
    body = [name for name in own if not name.startswith(head)]
    wrong = [name for name in body if name not in weights or weights[name].shape != own[name].shape]
    if not wrong:
        network.load_state_dict(own | {name: weights[name] for name in body})
    return wrong


def _classifier(network: nn.Module) -> tuple[str, ...]:
    names: Any = getattr(network, "pretrained_cfg", {}).get("classifier", "fc")
    return tuple(f"{name}." for name in ([names] if isinstance(names, str) else names))
