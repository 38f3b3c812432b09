"""Caches the activations of a frozen prefix: computes them once per sample and reuses them for the rest of the run.

Samples are grouped by the data alone, so a resumed run computes the same bits again. The cache lies in memory, or in an
unlinked file of the run folder, which the kernel removes when the process ends.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from drivetrain.data.dataset import Dataset, Inputs, JointTargets, Split, Targets, keep_unchanged
from drivetrain.data.stateless_random import Ids
from drivetrain.models import frozen_split
from drivetrain.models.frozen_split import CacheSaving, FrozenSplit
from drivetrain.system import torch_errors
from drivetrain.system.files import reserve

TOKENS_PER_GROUP = 2048
"""Tokens of a group, padding included."""
FLOAT32_BYTES = 4
"""Bytes of a float32."""


@dataclass
class CachedRows:
    """Activations of some samples, end to end: one row per sample, or one per token if lengths differ."""

    flat: npt.NDArray[np.float32]
    offsets: npt.NDArray[np.int64] | None
    """Start of each sample, and the end of the last; None if each sample is one row."""
    full: bool = False

    def put(self, ids: Ids, activations: Inputs) -> None:
        """Store the activations of these samples."""
        values = activations[0].detach().to("cpu", torch.float32).numpy()
        if self.offsets is None:
            self.flat[ids] = values
            return
        for row, number in enumerate(ids.tolist()):
            start, end = self.offsets[number], self.offsets[number + 1]
            self.flat[start:end] = values[row, : end - start]

    def take(self, ids: Ids) -> Inputs:
        """The activations of these samples; those of different lengths are zero-padded, with their mask."""
        if self.offsets is None:
            return (torch.from_numpy(self.flat[ids]),)
        starts, lengths = self.offsets[ids], self.offsets[ids + 1] - self.offsets[ids]
        columns = np.arange(int(lengths.max(initial=0)))
        mask = columns < lengths[:, None]
        values = self.flat[np.where(mask, starts[:, None] + columns, 0)]
        values[~mask] = 0.0
        return torch.from_numpy(values), torch.from_numpy(mask.astype(np.int64))


class Activations:
    """A split that yields activations of the prefix in place of raw inputs.

    Args:
        split: the samples.
        rows: storage of the activations.
        groups: samples that are computed together.
        compute: computes the activations of a group.
        tell: reports the end of the computation.
    """

    def __init__(
        self,
        split: Split,
        rows: CachedRows,
        groups: list[Ids],
        compute: Callable[[Ids], Inputs],
        report: Callable[[str], None],
    ) -> None:
        self.split, self.rows, self.groups, self.compute, self.tell = split, rows, groups, compute, report
        self.targets: Targets = split.targets

    @property
    def masked(self) -> bool:
        """Whether they are of tokens, and the last input is the mask of these."""
        return self.rows.offsets is not None

    def __len__(self) -> int:
        return len(self.split)

    def gather(self, ids: Ids) -> Inputs:
        """The activations of these samples; the first call computes those of all samples."""
        if not self.rows.full:
            self._fill()
        return self.rows.take(ids)

    def title(self, index: int) -> str:
        """A name for one sample."""
        return self.split.title(index)

    def _fill(self) -> None:
        start = time.monotonic()
        for ids in self.groups:
            self._put(ids)
        self.rows.full = True
        self.tell(f"computed once for {len(self):,} samples, in {time.monotonic() - start:.1f} s")

    def _put(self, ids: Ids) -> None:
        """Compute and store a group; split it in halves if memory runs out."""
        try:
            return self.rows.put(ids, self.compute(ids))
        except (MemoryError, RuntimeError) as error:
            if not torch_errors.is_out_of_memory(error):
                raise
            if len(ids) == 1:
                raise torch_errors.out_of_memory_error(error) from None
        for half in np.array_split(ids, 2):
            self._put(half)


class Views:
    """The activations of training samples whose augmentation repeats, by view; each is computed when its epoch comes.

    Args:
        views: the activations of each view.
    """

    def __init__(self, views: Sequence[Activations]) -> None:
        self.views, self.targets, self.masked = views, views[0].targets, views[0].masked

    def __len__(self) -> int:
        return len(self.views[0])

    def at_epoch(self, epoch: int) -> Activations:
        """The activations of the view of this epoch, counted from 0."""
        return self.views[epoch % len(self.views)]

    def gather(self, ids: Ids) -> Inputs:
        """Those of the first view."""
        return self.views[0].gather(ids)

    def title(self, index: int) -> str:
        """A name for one sample."""
        return self.views[0].title(index)


def saving(dataset: Dataset, model: nn.Module) -> CacheSaving | None:
    """What caching the activations would cost and save; None if the network cannot be split."""
    if isinstance(dataset.train, JointTargets) or not hasattr(model, "split_at_frozen"):
        return None
    device = next(model.parameters()).device
    inputs = tuple(x.to(device) for x in sample(dataset))
    split = frozen_split.of(model, inputs)
    return frozen_split.saving(model, split, inputs) if split else None


def total(dataset: Dataset, saving: CacheSaving) -> int:
    """Bytes of all activations."""
    splits = (*[dataset.train] * max(1, dataset.views), dataset.validation)
    return FLOAT32_BYTES * saving.numbers * sum(int(_lengths(s).sum()) if saving.ragged else len(s) for s in splits)


def keep(
    dataset: Dataset,
    model: nn.Module,
    device: torch.device,
    *,
    key: str,
    batch_size: int,
    folder: Path | None,
    compute: Callable[[FrozenSplit, Split, Ids, int | None], Inputs],
    report: Callable[[str], None],
) -> tuple[Dataset, FrozenSplit]:
    """Replace the samples of a dataset by cached activations of the network's frozen prefix.

    Args:
        dataset: the samples.
        model: a network that can be split.
        device: where the network is.
        key: the settings that the activations depend on; those of the same dataset and key are reused.
        batch_size: samples that are computed together, if all have the same length.
        folder: where the activations are stored; None for memory.
        compute: computes the activations of some samples, augmented as in the given epoch.
        report: reports that the activations of a split have been computed.

    Returns:
        The dataset of activations, and the split network.

    Raises:
        StorageError: if the disk has no space for the file.
    """
    division, outputs = _divide(model, tuple(x.to(device) for x in sample(dataset)))
    views: list[int | None] = [*range(dataset.views)] or [None]
    parts = [*((dataset.train, epoch) for epoch in views), (dataset.validation, None)]
    storages = _storage(dataset, f"{key} {division.name}", [split for split, _ in parts], outputs, folder)

    def activations(split: Split, epoch: int | None, rows: CachedRows) -> Activations:
        which = "" if epoch is None else f", view {epoch + 1} of {len(views)},"
        return Activations(
            split,
            rows,
            _groups(split, batch_size, rows.offsets is not None),
            lambda ids: compute(division, split, ids, epoch),
            lambda text: report(f"{division.name}{which} {text}"),
        )

    *trained, validation = (
        activations(split, epoch, rows) for (split, epoch), rows in zip(parts, storages, strict=True)
    )
    train = Views(trained) if dataset.views else trained[0]
    cached = replace(dataset, train=train, validation=validation, prepare=keep_unchanged, mixable=False)
    return cached, division


def sample(dataset: Dataset) -> Inputs:
    """The first training sample, preprocessed as in evaluation."""
    ids = np.zeros(1, np.int64)
    return dataset.prepare(dataset.train.gather(ids), ids, None)


def _divide(model: nn.Module, inputs: Inputs) -> tuple[FrozenSplit, Inputs]:
    """The split network, and what its frozen prefix makes of these inputs."""
    division = frozen_split.of(model, inputs)
    assert division is not None, "refused where there is no frozen prefix"
    with frozen_split.evaluating(model), torch.no_grad():
        return division, division.prefix(*inputs)


def _storage(dataset: Dataset, key: str, splits: list[Split], outputs: Inputs, folder: Path | None) -> list[CachedRows]:
    """Storage for each of these splits: what the dataset has kept under this key, or a new one in place of all other."""
    if key not in dataset.cache:
        dataset.cache.clear()
        dataset.cache[key] = [_rows(split, outputs, folder) for split in splits]
    storages: list[CachedRows] = dataset.cache[key]
    return storages


def _rows(split: Split, outputs: Inputs, folder: Path | None) -> CachedRows:
    """Storage for the activations of a split, shaped like the given ones."""
    ragged = len(outputs) > 1
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(_lengths(split))]) if ragged else None
    count = int(offsets[-1]) if offsets is not None else len(split)
    shape = (count, *outputs[0].shape[2 if ragged else 1 :])
    return CachedRows(np.empty(shape, np.float32) if folder is None else _file(folder, shape), offsets)


def _groups(split: Split, batch_size: int, ragged: bool) -> list[Ids]:
    """Group samples of similar length, which saves padding; depends on the data alone."""
    if not ragged:
        return np.array_split(np.arange(len(split), dtype=np.int64), -(-len(split) // batch_size))
    lengths = _lengths(split)
    order = np.argsort(lengths, kind="stable").astype(np.int64)
    cuts, first = [0], 0
    for position, number in enumerate(order.tolist()):
        if position > first and (position + 1 - first) * lengths[number] > TOKENS_PER_GROUP:
            cuts.append(position)
            first = position
    return [order[start:end] for start, end in pairwise([*cuts, len(order)])]


def _lengths(split: Any) -> npt.NDArray[np.int64]:
    return split.lengths  # type: ignore[no-any-return]


def _file(folder: Path, shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
    """Map an unlinked file, with its disk space allocated now: a disk that fills later would kill the process."""
    with tempfile.TemporaryFile(dir=folder) as file:
        reserve(file, FLOAT32_BYTES * prod(shape), folder)
        return np.memmap(file, np.float32, "r+", shape=shape)
