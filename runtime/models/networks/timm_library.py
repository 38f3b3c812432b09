"""Imports timm, also where no torchvision fits this torch: timm's networks use none of torchvision's operators.

torchvision's wheels are built for one build of torch. The usual one needs CUDA's libraries, and beside a torch for CPUs its
import fails when it describes operators that could not be loaded. The images and `make setup` therefore keep torchvision
in a folder of its own, where nothing else finds it, and here it is imported without these descriptions.
"""

from __future__ import annotations

import contextlib
import importlib.util
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from runtime.errors import SpecError

ASIDE = Path(sys.prefix) / "lib" / "timm"
"""The folder of torchvision; `docker/unused/aside` fills it."""


def load() -> Any:
    """The module timm.

    Raises:
        SpecError: if it cannot be imported.
    """
    try:
        with _torchvision():
            import timm
    except Exception as error:  # a torchvision built for another torch version raises more than ImportError
        raise SpecError(
            f"model.source: timm cannot be imported here: {type(error).__name__}: {str(error)[:200]}",
            "timm with a torchvision that fits this torch: the images and `make setup` have both",
            "train in a container, or pip install 'drivetrain[timm]', or use a built-in network or source: transformers",
        ) from None
    return timm


@contextlib.contextmanager
def _torchvision() -> Iterator[None]:
    """Make torchvision importable: the installed one if there is one, else the one aside, without its operators."""
    if "timm" in sys.modules or importlib.util.find_spec("torchvision") or not (ASIDE / "torchvision").is_dir():
        yield
        return
    register = torch.library.register_fake
    sys.path.append(str(ASIDE))
    torch.library.register_fake = _but_of_torchvision(register)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that it cannot read images, which is not its task here
            yield
    finally:
        torch.library.register_fake = register
        sys.path.remove(str(ASIDE))


def _but_of_torchvision(register: Callable[..., Any]) -> Callable[..., Any]:
    """`torch.library.register_fake` that leaves out the operators of torchvision."""

    def chosen(operator: object, *given: object, **options: object) -> Any:
        if isinstance(operator, str) and operator.startswith("torchvision::"):
            return lambda function: function
        return register(operator, *given, **options)

    return chosen
