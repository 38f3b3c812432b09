"""Runs a trained network over samples in order, batch by batch, in fp32."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import prod

import numpy as np
import torch
from torch import Tensor, nn

from runtime.data.dataset import Preprocessing, Split
from runtime.data.stateless_random import Ids
from runtime.models import own_layers
from runtime.system import torch_settings

MOST = 1024
"""Largest batch size."""
ROOM = 4_000_000
"""Limit of input values per batch; activations take about a hundred times as much memory."""
VECTOR = 256
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
    computed = own_layers.without_gradients(network)(_outputs)(network.to(device), heads, split, prepare, device)
    return computed


def _outputs(
    network: nn.Module, heads: Iterable[str], split: Split, prepare: Preprocessing, device: torch.device
) -> Iterator[tuple[Ids, dict[str, Tensor]]]:
    with torch_settings.plain():
        for ids in groups(split, prepare):
            raw = tuple(x.to(device) for x in split.gather(ids))
            found = network(*prepare(raw, ids, None))
            yield ids, {name: (found[name] if isinstance(found, Mapping) else found).float().cpu() for name in heads}


def groups(split: Split, prepare: Preprocessing) -> Iterator[Ids]:
    """All ids in order, in batches that fit into memory; the size is derived from the first samples."""
    ids = np.arange(len(split), dtype=np.int64)
    look = ids[:8]
    inputs = prepare(split.gather(look), look, None)
    numbers = sum(prod(x.shape[1:]) * (1 if x.is_floating_point() else VECTOR) for x in inputs)
    size = max(1, min(MOST, ROOM // max(1, numbers)))
    return (ids[start : start + size] for start in range(0, len(ids), size))
