"""The functions that build a network from plain values, by the name that a model folder stores."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from runtime.models.networks import cnn, cnn_lstm, hf_vision, mlp, text_encoder, timm_vision

BUILDERS: dict[str, Callable[..., nn.Module]] = {
    "images": cnn.build,
    "vision": hf_vision.build,
    "timm": timm_vision.build,
    "texts": text_encoder.build,
    "series": cnn_lstm.build,
    "tables": mlp.build,
}
_SPARE = 64 << 20
"""Bytes of a network that are always allowed."""
_MODULE = 4096
"""Bytes that a parameter takes beside its values, with the module that it is in."""


@contextlib.contextmanager
def no_larger_than(weights: Path) -> Iterator[None]:
    """Stop a network that is being built when it is too large for a file of weights, which says what it must hold.

    Raises:
        ValueError: if it is.
    """
    # The file can be of half the precision, and a builder can make layers that it then replaces.
    room = 4 * (weights.stat().st_size if weights.is_file() else 0) + _SPARE

    def count(module: nn.Module, name: str, parameter: nn.Parameter) -> None:
        nonlocal room
        # Memory is taken when the values are set, which comes later; a module itself takes some, too.
        room -= parameter.numel() * parameter.element_size() + _MODULE
        if room < 0:
            raise ValueError(f"it is larger than {weights.name}")

    handle = register_module_parameter_registration_hook(count)
    try:
        yield
    finally:
        handle.remove()
