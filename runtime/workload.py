"""Workload: what the model and the data turned out to be. Frozen facts; made where torch is, read anywhere."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Facts of one model on one data set."""

    layers: dict[str, int] = field(default_factory=dict)
    """How often each kind of layer occurs: Conv2d, Linear, LSTM, BatchNorm2d, Dropout, ..."""
    parameters: int = 0
    """All parameters."""
    trainable: int = 0
    """Parameters that are trained."""
    sample_bytes: int = 0
    """Bytes of one prepared sample."""
    decoded: bool = True
    """False where samples are decoded from files each time."""

    def has(self, *kinds: str) -> bool:
        """Whether a layer of one of these kinds occurs; `BatchNorm` stands for all of its dimensions."""
        return any(layer.startswith(kinds) for layer in self.layers)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON data."""
        return asdict(self)
