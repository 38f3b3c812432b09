"""The functions that build a network from plain values, by the name that a model folder stores."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from runtime.models.networks import cnn, cnn_lstm, hf_vision, mlp, text_encoder, timm_vision

BUILDERS: dict[str, Callable[..., nn.Module]] = {
    "images": cnn.build,
    "vision": hf_vision.build,
    "timm": timm_vision.build,
    "texts": text_encoder.build,
    "series": cnn_lstm.build,
    "tables": mlp.build,
}
