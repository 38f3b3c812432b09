"""Lists the builders of networks by the name that a model folder stores, and limits the size of what they build."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from drivetrain.models.networks import cnn, hf_vision, text_encoder, timm_vision
from drivetrain.models.networks.cnn_lstm import CnnLstm
from drivetrain.models.networks.linear_table import LinearTable
from drivetrain.models.networks.mlp import Mlp
from drivetrain.models.networks.tabm import TabM
from drivetrain.models.networks.word_bag import WordBag

BUILDERS: dict[str, Callable[..., nn.Module]] = {
    "images": cnn.build,
    "vision": hf_vision.build,
    "timm": timm_vision.build,
    "texts": text_encoder.build,
    "linear texts": WordBag,
    "series": CnnLstm,
    "tables": Mlp,
    "linear tables": LinearTable,
    "tabm": TabM,
}
"""Builders by name. Their arguments are plain values, which `model/` stores to build the network again."""
_ALWAYS_ALLOWED_BYTES = 64 << 20
"""Size of networks that is allowed for weights of any size."""
_PARAMETER_OVERHEAD_BYTES = 4096
"""Estimated memory of a parameter in addition to its values, with its share of the module."""


@contextlib.contextmanager
def limit_size(weights: Path) -> Iterator[None]:
    """Stop building a network in this block as soon as its parameters exceed the capacity of a file of weights.

    The arguments of the builder come from a folder of unknown origin, so they may claim any size.

    Args:
        weights: file of weights.

    Raises:
        ValueError: if the network is too large.
    """
    # One factor of 2 because the file may have half precision, another for layers that a builder makes and replaces.
    remaining_bytes = 4 * (weights.stat().st_size if weights.is_file() else 0) + _ALWAYS_ALLOWED_BYTES

    def charge(module: nn.Module, name: str, parameter: nn.Parameter) -> None:
        nonlocal remaining_bytes
        # This runs before the parameter is set, so that the network is refused before its memory is used.
        remaining_bytes -= parameter.numel() * parameter.element_size() + _PARAMETER_OVERHEAD_BYTES
        if remaining_bytes < 0:
            raise ValueError(f"it is larger than {weights.name}")

    with register_module_parameter_registration_hook(charge):
        yield
