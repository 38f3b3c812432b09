"""Workload: what the model and the data turned out to be. Frozen facts; made where torch is, read anywhere."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

BATCHES_PER_WORKER = 3
"""Batches of one loader worker in shared memory at once: two waiting and one in use."""


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
    samples: int = 0
    """Training and validation samples."""
    decoded: bool = True
    """False where samples are decoded from files each time."""
    blocks: int = 0
    """Repeated blocks, such as encoder layers or residual blocks."""
    activations: int = 0
    """Bytes that one sample, one of the largest, keeps for the backward pass; 0 if that was not counted."""
    recomputed: int = 0
    """Likewise at the most, if blocks keep their inputs only."""
    ragged: bool = False
    """Whether samples have different lengths."""
    token_bytes: int = 0
    """Bytes that a token keeps for the backward pass where texts stand in one row; 0 if they cannot."""
    prefix: str = ""
    """The frozen part that is computed before anything trained, in words; empty if there is none."""
    prefix_ragged: bool = False
    """Whether its outputs are a row for each token; else they are one for each sample."""
    prefix_bytes: int = 0
    """Bytes of its outputs for all samples."""
    prefix_share: float = 0.0
    """Share of the arithmetic of a training step that it takes."""
    prefix_work: float = 0.0
    """Floating-point operations that it takes for each byte of its outputs."""

    def has(self, *kinds: str) -> bool:
        """Whether a layer of one of these kinds occurs; `BatchNorm` stands for all of its dimensions."""
        return any(layer.startswith(kinds) for layer in self.layers)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON data."""
        return asdict(self)


_UNITS = ((1e12, "TFLOP"), (1e9, "GFLOP"), (1e6, "MFLOP"), (1e3, "kFLOP"))


def flop(count: float) -> str:
    """A count of floating-point operations in a fitting unit: 13.33 GFLOP."""
    unit, name = next(((unit, name) for unit, name in _UNITS if count >= unit), (1.0, "FLOP"))
    return f"{count / unit:.4g} {name}"
