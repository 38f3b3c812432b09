"""Runs a trained network over samples in order, batch by batch, in fp32."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import prod

import numpy as np
import torch
from torch import Tensor, nn

from drivetrain.data.dataset import Preprocessing, Split
from drivetrain.data.stateless_random import Ids
from drivetrain.system import torch_settings

_KNOWN = ("torch.", f"{__name__.partition('.')[0]}.", "timm.", "transformers.")


def has_own_layers(model: nn.Module) -> bool:
    """Whether a layer of the network is the user's own, and neither torch's nor of a library that is used here."""
    return not all(type(layer).__module__.startswith(_KNOWN) for layer in model.modules())


def without_gradients(model: nn.Module) -> torch.no_grad | torch.inference_mode:
    """A block, or decorator, that computes no gradients of the network, in the fastest way that its layers allow."""
    # A layer of the user's own may ask for a gradient by itself: its forward pass calls `torch.autograd.grad`.
    return torch.no_grad() if has_own_layers(model) else torch.inference_mode()


MAX_BATCH_SIZE = 1024
"""Largest batch size."""
MAX_BATCH_VALUES = 4_000_000
"""Limit of input values per batch; activations take about a hundred times as much memory."""
VALUES_PER_INDEX = 256
"""Values that a token or category counts as, since the network embeds it as a vector."""


def outputs(
    network: nn.Module, heads: Iterable[str], split: Split, prepare: Preprocessing, device: torch.device
) -> Iterator[tuple[Ids, dict[str, Tensor]]]:
    """The ids of each batch and the outputs by head, (N, outputs) float32 on the CPU.

    Args:
        network: in evaluation mode; it is moved to the device.
        heads: names of the outputs.
        split: the samples.
        prepare: raw inputs to network inputs.
        device: of the computation.
    """
    computed: Iterator[tuple[Ids, dict[str, Tensor]]]
    computed = without_gradients(network)(_outputs)(network.to(device), heads, split, prepare, device)
    return computed


def _outputs(
    network: nn.Module, heads: Iterable[str], split: Split, prepare: Preprocessing, device: torch.device
) -> Iterator[tuple[Ids, dict[str, Tensor]]]:
    with torch_settings.plain():
        for ids in groups(split, prepare):
            raw = tuple(x.to(device) for x in split.gather(ids))
            outputs = network(*prepare(raw, ids, None))
            yield (
                ids,
                {name: (outputs[name] if isinstance(outputs, Mapping) else outputs).float().cpu() for name in heads},
            )


def groups(split: Split, prepare: Preprocessing) -> Iterator[Ids]:
    """All ids in order, in batches that fit into memory; the size is derived from the first samples."""
    ids = np.arange(len(split), dtype=np.int64)
    look = ids[:8]
    inputs = prepare(split.gather(look), look, None)
    numbers = sum(prod(x.shape[1:]) * (1 if x.is_floating_point() else VALUES_PER_INDEX) for x in inputs)
    size = max(1, min(MAX_BATCH_SIZE, MAX_BATCH_VALUES // max(1, numbers)))
    return (ids[start : start + size] for start in range(0, len(ids), size))
