"""The workload: properties of model and data that decisions depend on. They are computed with torch and read without."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

BATCHES_PER_WORKER = 3
"""Batches of one loader worker that are in shared memory at the same time: two waiting and one in use."""

MIN_CACHED_FLOP_PER_BYTE = 200.0
"""FLOPs per cached byte above which reading the outputs of frozen layers from memory is certainly cheaper than computing
them again; a CPU computes 10 to 100 FLOPs in the time in which it reads one byte."""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Properties of one model on one dataset."""

    layers: dict[str, int] = field(default_factory=dict)
    """Number of layers by kind: Conv2d, Linear, LSTM, BatchNorm2d, Dropout, ..."""
    parameters: int = 0
    """Number of parameters."""
    trainable: int = 0
    """Number of parameters that are trained in any epoch."""
    sample_bytes: int = 0
    """Bytes of one preprocessed sample."""
    samples: int = 0
    """Number of training and validation samples."""
    decoded: bool = True
    """Whether samples are in memory; False if they are decoded from files each time they are used."""
    varies: bool = False
    """Whether the data itself gives other training samples in every epoch, before any augmentation."""
    streams: bool = False
    """Whether the training data is an iterable, which is read in its order."""
    blocks: int = 0
    """Number of repeated blocks, such as encoder layers or residual blocks."""
    activations: int = 0
    """Bytes that one of the largest samples saves for the backward pass; 0 if not counted."""
    recomputed: int = 0
    """Peak of these bytes if blocks save only their inputs."""
    ragged: bool = False
    """Whether samples have different lengths."""
    token_bytes: int = 0
    """Bytes per token saved for the backward pass if texts are packed in one row; 0 if they cannot be."""
    tokens: float = 0.0
    """Average number of tokens of a training text, without padding; 0 if samples are not texts."""
    padding: float = 0.0
    """Share of padding in batches of texts that are padded to their longest text."""
    token_work: float = 0.0
    """FLOPs of a training step per token if samples are texts: 6 for each parameter outside of embeddings."""
    numeric: bool = False
    """Whether numbers are predicted, for which rounding matters more than for classes."""
    layout_obstacle: str = ""
    """Reason why the network does not train in channels_last layout; empty if it does."""
    prefix: str = ""
    """Description of the frozen layers that are computed before all trainable layers; empty if there are none."""
    prefix_ragged: bool = False
    """Whether the output of the prefix has a row per token, and not per sample."""
    prefix_bytes: int = 0
    """Bytes of the prefix's outputs for all samples; of the largest outputs if layers are unfrozen later."""
    prefix_share: float = 0.0
    """Share of the prefix in the FLOPs of a training step."""
    indivisible: str = ""
    """Reason why the user's loss of a batch is not the sum of the losses of micro-batches; empty if it is."""
    prefix_work: float = 0.0
    """FLOPs per byte of the prefix's outputs."""

    def has(self, *kinds: str) -> bool:
        """Return whether there is a layer of one of these kinds; `BatchNorm` means BatchNorm of any dimension."""
        return any(layer.startswith(kinds) for layer in self.layers)

    def to_json(self) -> dict[str, object]:
        """Return plain JSON data."""
        return asdict(self)


_UNITS = ((1e12, "TFLOP"), (1e9, "GFLOP"), (1e6, "MFLOP"), (1e3, "kFLOP"))


def format_flop(count: float) -> str:
    """Format a number of FLOPs with a suitable unit: 13.33 GFLOP."""
    unit, name = next(((unit, name) for unit, name in _UNITS if count >= unit), (1.0, "FLOP"))
    return f"{count / unit:.4g} {name}"
