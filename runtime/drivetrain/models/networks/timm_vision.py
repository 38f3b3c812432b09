"""Builds image networks of the timm library, and loads their weights."""

from __future__ import annotations

import contextlib
import importlib.util
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from drivetrain.errors import SpecError
from drivetrain.pretrained.folder import closed_hub

TORCHVISION_FOLDER = Path(sys.prefix) / "lib" / "timm"
"""Folder of a torchvision outside of the import path; `docker/unused/aside` fills it."""


def load_timm() -> Any:
    """Import timm; raises SpecError if it cannot be imported."""
    try:
        with closed_hub(), _importable_torchvision():
            import timm
    except Exception as error:  # a torchvision built for another torch version raises more than ImportError
        raise SpecError(
            f"model.source: timm cannot be imported here: {type(error).__name__}: {str(error)[:200]}",
            "timm with a torchvision that fits this torch: the images and `make setup` have both",
            "train in a container, or pip install 'drivetrain[timm]', or use a built-in network or source: transformers",
        ) from None
    return timm


@contextlib.contextmanager
def _importable_torchvision() -> Iterator[None]:
    """Make torchvision importable in the block: the installed one, or TORCHVISION_FOLDER without its operators.

    Each wheel of torchvision is built for one build of torch. The usual wheel needs CUDA's libraries. With a torch for
    CPUs its import fails when it describes operators that could not be loaded. The images and `make setup` therefore
    keep torchvision in a separate folder, where other packages do not find it.
    """
    if (
        "timm" in sys.modules
        or importlib.util.find_spec("torchvision")
        or not (TORCHVISION_FOLDER / "torchvision").is_dir()
    ):
        yield
        return
    register = torch.library.register_fake
    sys.path.append(str(TORCHVISION_FOLDER))
    torch.library.register_fake = _skip_torchvision(register)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it warns that it cannot read images, which we do not need
            yield
    finally:
        torch.library.register_fake = register
        sys.path.remove(str(TORCHVISION_FOLDER))


def _skip_torchvision(register: Callable[..., Any]) -> Callable[..., Any]:
    """Return a `torch.library.register_fake` that ignores the operators of torchvision."""

    def register_unless_torchvision(operator: object, *arguments: object, **options: object) -> Any:
        if isinstance(operator, str) and operator.startswith("torchvision::"):
            return lambda function: function
        return register(operator, *arguments, **options)

    return register_unless_torchvision


_ARCHITECTURE = re.compile(r"[\w.]+")


def build(*, name: str, classes: int, channels: int, image_size: int, dropout: float) -> nn.Module:
    """Build a network with random weights; input (N, channels, H, W), output (N, classes).

    Raises:
        SpecError: if timm cannot be imported.
        RuntimeError: if timm has no such architecture.
        ValueError: if the name is not an architecture but a hub address or a folder, which timm would read.
    """
    if not _ARCHITECTURE.fullmatch(name):
        raise ValueError(f"{name!r} is not the name of an architecture")
    timm = load_timm()
    pretrained_config = timm.get_pretrained_cfg(name, allow_unregistered=True)
    has_fixed_size = pretrained_config is not None and pretrained_config.fixed_input_size
    size = {"img_size": image_size} if has_fixed_size else {}
    with closed_hub():
        network: nn.Module = timm.create_model(
            name, pretrained=False, num_classes=classes, in_chans=channels, drop_rate=dropout, **size
        )
    return network
