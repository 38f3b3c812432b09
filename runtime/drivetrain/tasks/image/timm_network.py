"""Builds the network of timm that a job names, and loads its weights."""

from __future__ import annotations

import difflib
from functools import partial
from typing import Any

import torch
from torch import nn

from drivetrain.errors import SpecError
from drivetrain.job.model import ImageTimm
from drivetrain.models import safetensors_file
from drivetrain.models.networks.timm_vision import build, load_timm
from drivetrain.pretrained import convert
from drivetrain.tasks.image.expected_input import TimmFolder
from drivetrain.tasks.image.job import ImageJob


def build_from_spec(job: ImageJob, spec: ImageTimm, arguments: dict[str, Any]) -> nn.Module:
    """Build the network of a job, and load its weights if the job names a file.

    Raises:
        SpecError: if timm cannot be imported or has no such architecture, or the weights do not fit.
    """
    architectures = load_timm().list_models()
    if spec.name not in architectures and spec.name.split(".")[0] not in architectures:
        near = ", ".join(difflib.get_close_matches(spec.name, architectures, 3)) or "timm.list_models() lists them"
        raise job.spec_error(
            ("model", "name"),
            f"timm has no network {spec.name!r}",
            f"one of its {len(architectures):,} architectures",
            near,
        )
    try:
        network = build(**arguments)
        network.eval()
        with torch.inference_mode():
            network(torch.zeros(1, arguments["channels"], arguments["image_size"], arguments["image_size"]))
    except SpecError:
        raise
    except Exception as error:  # the library's architectures may raise anything
        size = arguments["image_size"]
        raise job.spec_error(
            ("model", "name"),
            f"{spec.name} does not accept images of {size} pixels a side: {type(error).__name__}: {str(error)[:200]}",
            "the size the network was made for",
            "change data.image_size",
        ) from None
    if spec.weights:
        _load_file_weights(job, spec.weights, network)
    return network.train()


def load_folder_weights(network: nn.Module, source: TimmFolder) -> set[str]:
    """Load all tensors except the classifier's from a folder of timm; returns the names of the random tensors.

    Raises:
        SpecError: if the file cannot be read or has other tensors.
    """
    file, random_names = source.folder / "model.safetensors", _list_classifier_tensors(network)
    wrong = safetensors_file.load(network, safetensors_file.read_or_refuse(file, source.refuse), random_names)
    if wrong:
        source.refuse(
            f"{file} does not fit: {len(wrong)} tensors are missing or of another shape: {', '.join(list(wrong)[:3])}",
            "weights of this architecture, and for some the image_size of its training",
            "remove data.image_size, or use another folder",
        )
    return random_names


def _load_file_weights(job: ImageJob, name: str, network: nn.Module) -> None:
    """Load all weights from the file of a job except the classifier's, which was trained for other classes."""
    key, file = ("model", "weights"), job.resolve(name)
    convert.check_suffix(job, file)
    refuse = partial(job.spec_error, key)
    weights = safetensors_file.read_or_refuse(file, refuse, "download it again")
    wrong = safetensors_file.load(network, weights, _list_classifier_tensors(network))
    if wrong:
        description = (
            f"{file} does not fit: {len(wrong)} tensors are missing or of another shape: {', '.join(list(wrong)[:3])}"
        )
        action = "check that both come from the same network"
        raise refuse(description, "weights of this architecture", action)


def _list_classifier_tensors(network: nn.Module) -> set[str]:
    names: Any = getattr(network, "pretrained_cfg", {}).get("classifier", "fc")
    prefixes = tuple(f"{name}." for name in ([names] if isinstance(names, str) else names))
    return {name for name in network.state_dict() if name.startswith(prefixes)}
