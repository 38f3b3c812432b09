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

_LIBRARY_PREFIXES = ("torch.", f"{__name__.partition('.')[0]}.", "timm.", "transformers.")


def has_own_layers(model: nn.Module) -> bool:
    """Return whether a layer's class is the user's own, and not from torch or another library."""
    return not all(type(layer).__module__.startswith(_LIBRARY_PREFIXES) for layer in model.modules())


def without_gradients(model: nn.Module) -> torch.no_grad | torch.inference_mode:
    """Return the fastest context or decorator without gradients that the network's layers allow."""
    # The forward pass of a user's layer may call `torch.autograd.grad`, which fails in inference mode.
    return torch.no_grad() if has_own_layers(model) else torch.inference_mode()


MAX_BATCH_SIZE = 1024
"""Largest number of samples per batch."""
MAX_BATCH_VALUES = 4_000_000
"""Largest number of input values per batch; activations take about a hundred times as much memory."""
VALUES_PER_INDEX = 256
"""Number of values that a token or category counts as, because the network embeds it as a vector."""


def compute_outputs(
    network: nn.Module,
    heads: Iterable[str],
    split: Split,
    prepare: Preprocessing,
    device: torch.device,
    ids: Ids | None = None,
) -> Iterator[tuple[Ids, dict[str, Tensor]]]:
    """Compute the outputs of all samples in order; yields the ids of each batch, and by head (N, outputs) float32.

    Args:
        network: network in evaluation mode; it is moved to the device.
        heads: names of the outputs.
        split: split with the samples.
        prepare: preprocessing of raw inputs.
        device: device of the computation; the outputs are moved to the CPU.
        ids: samples to compute, in this order; None for all.
    """
    computed: Iterator[tuple[Ids, dict[str, Tensor]]]
    computed = without_gradients(network)(_compute_outputs)(
        network.to(device), heads, split, prepare, device, np.arange(len(split), dtype=np.int64) if ids is None else ids
    )
    return computed


def _compute_outputs(
    network: nn.Module,
    heads: Iterable[str],
    split: Split,
    prepare: Preprocessing,
    device: torch.device,
    all_ids: Ids,
) -> Iterator[tuple[Ids, dict[str, Tensor]]]:
    with torch_settings.use_default_switches():
        for ids in cut_into_batches(split, prepare, all_ids):
            raw = tuple(x.to(device) for x in split.gather(ids))
            outputs = network(*prepare(raw, ids, None))
            by_name = isinstance(outputs, Mapping)
            yield ids, {name: (outputs[name] if by_name else outputs).float().cpu() for name in heads}


def cut_into_batches(split: Split, prepare: Preprocessing, ids: Ids) -> Iterator[Ids]:
    """Cut ids into batches that fit into memory; the first samples determine the batch size."""
    first_ids = ids[:8]
    inputs = prepare(split.gather(first_ids), first_ids, None)
    values_per_sample = sum(prod(x.shape[1:]) * (1 if x.is_floating_point() else VALUES_PER_INDEX) for x in inputs)
    batch_size = max(1, min(MAX_BATCH_SIZE, MAX_BATCH_VALUES // max(1, values_per_sample)))
    return (ids[start : start + batch_size] for start in range(0, len(ids), batch_size))
