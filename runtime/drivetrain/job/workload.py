"""The workload: properties of model and data on which decisions depend. Frozen; computed with torch, read without."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

BATCHES_PER_WORKER = 3
"""Batches of one loader worker in shared memory at once: two waiting and one in use."""

MIN_CACHED_FLOP_PER_BYTE = 200.0
"""FLOPs per cached byte from which on reading the outputs of frozen layers from memory is certainly cheaper than
computing them again: while one byte arrives, a CPU computes 10 to 100 FLOPs."""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Properties of one model on one data set."""

    layers: dict[str, int] = field(default_factory=dict)
    """Number of layers by kind: Conv2d, Linear, LSTM, BatchNorm2d, Dropout, ..."""
    parameters: int = 0
    """All parameters."""
    trainable: int = 0
    """Parameters that are trained at any time."""
    sample_bytes: int = 0
    """Bytes of one preprocessed sample."""
    samples: int = 0
    """Training and validation samples."""
    decoded: bool = True
    """False if samples are decoded from files each time they are used."""
    streams: bool = False
    """Whether the training data is an iterable, which is read in its order."""
    blocks: int = 0
    """Repeated blocks, such as encoder layers or residual blocks."""
    activations: int = 0
    """Bytes that one sample (one of the largest) saves for the backward pass; 0 if not counted."""
    recomputed: int = 0
    """The same at the peak, if blocks save only their inputs."""
    ragged: bool = False
    """Whether samples have different lengths."""
    token_bytes: int = 0
    """Bytes per token saved for the backward pass if texts are packed in one row; 0 if they cannot be."""
    tokens: float = 0.0
    """Real tokens of a training text, on average; 0 if samples are no texts."""
    padding: float = 0.0
    """Share of padding in batches of texts that are filled up to their longest one."""
    token_work: float = 0.0
    """FLOPs of a training step per token, if samples are texts: 6 for each parameter that is no embedding."""
    numeric: bool = False
    """Whether numbers are predicted, in which rounding shows that classes hide."""
    layout_obstacle: str = ""
    """Why the network does not train in channels_last layout; empty if it does."""
    prefix: str = ""
    """The frozen part that is computed before any trainable one, in words; empty if there is none."""
    prefix_ragged: bool = False
    """Whether its output has a row per token; else per sample."""
    prefix_bytes: int = 0
    """Bytes of its outputs for all samples; of the largest outputs, if parts of it are unfrozen later."""
    prefix_share: float = 0.0
    """Its share of the FLOPs of a training step."""
    indivisible: str = ""
    """Why the user's loss of a batch cannot be put together from those of its parts; empty if it can."""
    prefix_work: float = 0.0
    """FLOPs per byte of its outputs."""

    def has(self, *kinds: str) -> bool:
        """Return whether a layer of one of these kinds occurs; `BatchNorm` stands for all of its dimensions."""
        return any(layer.startswith(kinds) for layer in self.layers)

    def to_json(self) -> dict[str, object]:
        """Return plain JSON data."""
        return asdict(self)


_UNITS = ((1e12, "TFLOP"), (1e9, "GFLOP"), (1e6, "MFLOP"), (1e3, "kFLOP"))


def format_flop(count: float) -> str:
    """Format a number of FLOPs with a suitable unit: 13.33 GFLOP."""
    unit, name = next(((unit, name) for unit, name in _UNITS if count >= unit), (1.0, "FLOP"))
    return f"{count / unit:.4g} {name}"
