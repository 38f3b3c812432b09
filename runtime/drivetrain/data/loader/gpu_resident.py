"""Keeps the raw samples of a split in GPU memory, and gathers batches there."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from drivetrain.data.dataset import Dataset, Inputs, Split, Targets, onto
from drivetrain.data.loader.batches import fetch
from drivetrain.data.stateless_random import Ids


class GpuResidentSplit:
    """Split with all samples in device memory.

    Args:
        split: the samples, all of the same shape.
        chunk_bytes: approximate number of bytes to gather and copy at a time.
    """

    def __init__(self, split: Split, device: torch.device, chunk_bytes: int, workers: int = 0) -> None:
        self.split, self.device = split, device
        self.targets: Targets = split.targets
        self.inputs, self.device_targets = _copy_to_device(split, device, chunk_bytes, workers)

    def __len__(self) -> int:
        return len(self.split)

    def gather(self, ids: Ids) -> Inputs:
        """Return the raw inputs of these samples, on the device."""
        return self.samples(ids)[0]

    def samples(self, ids: Ids) -> tuple[Inputs, Targets]:
        """Return the raw inputs and targets of these samples, on the device."""
        rows = onto(self.device, ids)
        inputs = tuple(x.index_select(0, rows) for x in self.inputs)
        return inputs, {name: y.index_select(0, rows) for name, y in self.device_targets.items()}

    def title(self, index: int) -> str:
        """Return a name for one sample."""
        return self.split.title(index)


def move_to_device(dataset: Dataset, device: torch.device, chunk_bytes: int, workers: int = 0) -> Dataset:
    """Return the dataset with its samples on a device; the copy is made once and reused."""
    workers = 0 if dataset.decoded else workers
    resident = dataset.cache.setdefault("resident", {})
    for name in ("train", "validation"):
        if name not in resident:
            resident[name] = GpuResidentSplit(getattr(dataset, name), device, chunk_bytes, workers)
    return replace(dataset, train=resident["train"], validation=resident["validation"])


def _copy_to_device(split: Split, device: torch.device, chunk_bytes: int, workers: int) -> tuple[Inputs, Targets]:
    """Copy all inputs and targets to the device in chunks, so that the host never holds a second copy."""
    first_sample = next(fetch(split, [np.zeros(1, np.int64)]))
    inputs = tuple(_allocate(x, len(split), device) for x in first_sample.inputs)
    targets = {name: _allocate(y, len(split), device) for name, y in first_sample.targets.items()}
    chunk_samples = max(1, chunk_bytes // max(1, sum(x.nbytes for x in first_sample.inputs)))
    groups = np.split(np.arange(len(split), dtype=np.int64), range(chunk_samples, len(split), chunk_samples))
    for batch in fetch(split, groups, workers=workers):
        rows = slice(int(batch.ids[0]), int(batch.ids[-1]) + 1)
        for on_device, chunk in zip(
            (*inputs, *targets.values()), (*batch.inputs, *batch.targets.values()), strict=True
        ):
            on_device[rows] = chunk
    return inputs, targets


def _allocate(like: torch.Tensor, count: int, device: torch.device) -> torch.Tensor:
    """Allocate an empty tensor for `count` samples with the shape and dtype of the samples in `like`."""
    return torch.empty((count, *like.shape[1:]), dtype=like.dtype, device=device)
