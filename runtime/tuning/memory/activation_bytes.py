"""Counts the bytes that a forward pass saves for the backward pass, with and without recomputed blocks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from runtime.data.dataset import Dataset, longest_samples
from runtime.job.workload import Workload
from runtime.models import recompute
from runtime.tuning.memory import meter as gauge

SAMPLES = 2
"""BatchNorm needs two."""


@dataclass
class ActivationCount:
    """Bytes saved in one forward pass."""

    own: set[int] = field(default_factory=set)
    """Storages of the network's own parameters and buffers."""
    seen: dict[int, Tensor] = field(default_factory=dict)
    total: int = 0
    inputs: int = 0
    """Bytes of the inputs of all blocks."""
    inside: list[int] = field(default_factory=list)
    """Bytes saved inside each block."""

    def kept(self, tensor: Tensor) -> None:
        """Count a saved tensor, once."""
        key = tensor.untyped_storage()._cdata
        if key not in self.own and key not in self.seen:
            self.seen[key] = tensor.detach()
            self.total += tensor.untyped_storage().nbytes()

    @property
    def recomputed(self) -> int:
        """Peak bytes if blocks save only their inputs: all inputs, all outside of blocks, and the largest block's
        content.
        """
        return self.total - sum(self.inside) + self.inputs + max(self.inside, default=0)


def counted(facts: Workload, network: nn.Module, dataset: Dataset) -> Workload:
    """The workload with activation bytes of the largest samples.

    Runs one forward pass on the host; network and random state are unchanged. If memory runs out, the count so far is
    used.
    """
    ids = longest_samples(dataset.train, SAMPLES)
    inputs = dataset.prepare(dataset.train.gather(ids), ids, None)
    count, meter, was = ActivationCount(), gauge.HostMeter(), network.training
    ceiling = meter.ceiling()
    guard = meter.guarded(lambda: ceiling, count.kept)
    try:
        with torch.random.fork_rng(devices=[]), recompute.as_before(network), _watched(network, count), guard:
            count.own = {t.untyped_storage()._cdata for t in (*network.parameters(), *network.buffers())}
            network.train()(*inputs)
    except MemoryError:
        pass
    finally:
        network.train(was)
    return replace(facts, activations=count.total // len(ids), recomputed=count.recomputed // len(ids))


@contextmanager
def _watched(network: nn.Module, count: ActivationCount) -> Iterator[None]:
    """Count separately for each block."""
    before: list[int] = []

    def enter(block: nn.Module, inputs: tuple[object, ...]) -> None:
        before.append(count.total)
        count.inputs += sum(x.numel() * x.element_size() for x in inputs if isinstance(x, Tensor))

    def leave(block: nn.Module, inputs: tuple[object, ...], outputs: object) -> None:
        count.inside.append(count.total - before[-1])

    handles = [
        h
        for b in recompute.repeated(network)
        for h in (b.register_forward_pre_hook(enter), b.register_forward_hook(leave))
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
