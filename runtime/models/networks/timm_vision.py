"""Image networks from the timm library, which needs a torchvision that matches the installed torch."""

from __future__ import annotations

import difflib
from typing import Any

import torch
from torch import nn

from runtime.errors import SpecError
from runtime.job.images import ImageJob
from runtime.job.model import ImageTimm


def build(*, name: str, classes: int, channels: int, image_size: int, dropout: float) -> nn.Module:
    """Build a network with random weights; input (N, channels, H, W), output (N, classes).

    Raises:
        SpecError: if timm cannot be imported.
        RuntimeError: if timm has no such architecture.
    """
    timm = _library()
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
    known = _library().list_models()
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


def _fill(job: ImageJob, name: str, network: nn.Module) -> None:
    """Load all weights except the classifier's, which was trained for other classes."""
    from runtime.models.safetensors_file import read

    where = job.resolve(name)
    if where.suffix != ".safetensors":
        raise SpecError(
            [
                job.problem(
                    ("model", "weights"),
                    f"{where} is not a .safetensors file",
                    "weights without pickle",
                    f"run `drivetrain convert {where}`",
                )
            ]
        )
    try:
        weights = read(where)
    except (OSError, ValueError) as error:
        raise SpecError(
            [
                job.problem(
                    ("model", "weights"), f"{where} cannot be read: {error}", "a complete file", "download it again"
                )
            ]
        ) from None
    own = network.state_dict()
    head = _classifier(network)
    wrong = [
        key
        for key, value in own.items()
        if not key.startswith(head) and (key not in weights or weights[key].shape != value.shape)
    ]
    if wrong:
        raise SpecError(
            [
                job.problem(
                    ("model", "weights"),
                    f"{where} does not fit: {len(wrong)} tensors are missing or of "
                    f"another shape: {', '.join(wrong[:3])}",
                    "weights of this architecture",
                    "check that both come from the same network",
                )
            ]
        )
    network.load_state_dict(own | {key: weights[key] for key in own if not key.startswith(head)})


def _classifier(network: nn.Module) -> tuple[str, ...]:
    names: Any = getattr(network, "pretrained_cfg", {}).get("classifier", "fc")
    return tuple(f"{name}." for name in ([names] if isinstance(names, str) else names))


def _library() -> Any:
    """Import timm, which imports torchvision.

    Raises:
        SpecError: if one of the two cannot be imported.
    """
    try:
        import timm
    except Exception as error:  # a torchvision built for another torch version raises more than ImportError
        raise SpecError(
            f"model.source: timm cannot be imported here: {type(error).__name__}: {str(error)[:200]}",
            "torchvision and timm that fit this torch; no image of drivetrain holds them",
            "install both beside torch and train natively, or use a built-in network or source: transformers",
        ) from None
    return timm
