"""The functions that build a network from plain values, by the name that a model folder stores.

And a guard against model folders whose values describe a network larger than their weights.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from drivetrain.models.networks import cnn, cnn_lstm, hf_vision, linear_table, mlp, text_encoder, timm_vision

BUILDERS: dict[str, Callable[..., nn.Module]] = {
    "images": cnn.build,
    "vision": hf_vision.build,
    "timm": timm_vision.build,
    "texts": text_encoder.build,
    "series": cnn_lstm.build,
    "tables": mlp.build,
    "linear tables": linear_table.build,
}
_ALWAYS_ALLOWED_BYTES = 64 << 20
"""Bytes of a network that are allowed whatever the file holds."""
_PARAMETER_OVERHEAD_BYTES = 4096
"""Bytes that a parameter takes beside its values, with the module that it is in."""


@contextlib.contextmanager
def no_larger_than(weights: Path) -> Iterator[None]:
    """Stop building a network in this block as soon as its parameters exceed what a file of weights can hold.

    The values that a builder is called with come from a folder, and may claim any size.

    Raises:
        ValueError: if the network is too large.
    """
    # Twice, since the file can be of half the precision; twice more for layers that a builder makes and then replaces.
    remaining_bytes = 4 * (weights.stat().st_size if weights.is_file() else 0) + _ALWAYS_ALLOWED_BYTES

    def charge(module: nn.Module, name: str, parameter: nn.Parameter) -> None:
        nonlocal remaining_bytes
        # This runs before the values are set, so that memory is refused before it is used. A module takes some, too.
        remaining_bytes -= parameter.numel() * parameter.element_size() + _PARAMETER_OVERHEAD_BYTES
        if remaining_bytes < 0:
            raise ValueError(f"it is larger than {weights.name}")

    handle = register_module_parameter_registration_hook(charge)
    try:
        yield
    finally:
        handle.remove()
