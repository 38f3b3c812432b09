"""Caches the activations of a frozen prefix: computes them once per sample and reuses them in every epoch.

Groups of samples depend only on the data, so a resumed run computes the same bits again. The cache is in memory, or in
an unlinked file of the run folder, which the kernel removes when the process ends.
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
from drivetrain.system.files import reserve_space

TOKENS_PER_GROUP = 2048
"""Largest number of tokens, with padding, that are computed together."""
FLOAT32_BYTES = 4


@dataclass
class CachedRows:
    """Stored activations of the samples of a split: one row per sample, or one per token if lengths differ."""

    flat: npt.NDArray[np.float32]
    offsets: npt.NDArray[np.int64] | None
    """First row of each sample, then the end of the last sample; None if each sample is one row."""
    is_filled: bool = False

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
        """Return the samples' activations, (N, ...); or zero-padded (N, tokens, ...) and their mask (N, tokens)."""
        if self.offsets is None:
            return (torch.from_numpy(self.flat[ids]),)
        starts, lengths = self.offsets[ids], self.offsets[ids + 1] - self.offsets[ids]
        columns = np.arange(int(lengths.max(initial=0)))
        mask = columns < lengths[:, None]
        values = self.flat[np.where(mask, starts[:, None] + columns, 0)]
        values[~mask] = 0.0
        return torch.from_numpy(values), torch.from_numpy(mask.astype(np.int64))


class Activations:
    """A split with activations of the frozen prefix instead of raw inputs.

    Args:
        split: split with the samples.
        rows: storage of the activations.
        groups: ids of samples that are computed together.
        compute: function that computes the activations of a group.
        report: function that reports the end of the computation.
    """

    def __init__(
        self,
        split: Split,
        rows: CachedRows,
        groups: list[Ids],
        compute: Callable[[Ids], Inputs],
        report: Callable[[str], None],
    ) -> None:
        self.split, self.rows, self.groups, self.compute, self.report = split, rows, groups, compute, report
        self.targets: Targets = split.targets

    @property
    def masked(self) -> bool:
        """Whether each token has its own activations, so the last input is a mask."""
        return self.rows.offsets is not None

    def __len__(self) -> int:
        return len(self.split)

    def gather(self, ids: Ids) -> Inputs:
        """Return the activations of these samples; the first call computes the activations of all samples."""
        if not self.rows.is_filled:
            self._fill()
        return self.rows.take(ids)

    def title(self, index: int) -> str:
        """Return a name for one sample."""
        return self.split.title(index)

    def _fill(self) -> None:
        start = time.monotonic()
        for ids in self.groups:
            self._put(ids)
        self.rows.is_filled = True
        self.report(f"computed once for {len(self):,} samples, in {time.monotonic() - start:.1f} s")

    def _put(self, ids: Ids) -> None:
        """Compute and store the activations of a group; compute its halves separately if memory runs out."""
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
    """Activations of training samples whose augmentation repeats after some epochs; each of these epochs is a view.

    Args:
        views: activations of each view, which are computed when its epoch first begins.
    """

    def __init__(self, views: Sequence[Activations]) -> None:
        self.views, self.targets, self.masked = views, views[0].targets, views[0].masked

    def __len__(self) -> int:
        return len(self.views[0])

    def at_epoch(self, epoch: int) -> Activations:
        """Return the activations of this epoch's view; epochs are counted from 0."""
        return self.views[epoch % len(self.views)]

    def gather(self, ids: Ids) -> Inputs:
        """Return the activations of these samples in the first view."""
        return self.views[0].gather(ids)

    def title(self, index: int) -> str:
        """Return a name for one sample."""
        return self.views[0].title(index)


def measure_saving(dataset: Dataset, model: nn.Module) -> CacheSaving | None:
    """Measure the cost and saving of caching the activations; None if the network cannot be split."""
    if isinstance(dataset.train, JointTargets) or not hasattr(model, "split_at_frozen"):
        return None
    device = next(model.parameters()).device
    inputs = tuple(x.to(device) for x in take_first_sample(dataset))
    split = frozen_split.split_network(model, inputs)
    return frozen_split.measure_saving(model, split, inputs) if split else None


def count_bytes(dataset: Dataset, saving: CacheSaving) -> int:
    """Return the bytes of the activations of all samples, in all views."""
    splits = (*[dataset.train] * max(1, dataset.views), dataset.validation)
    rows = sum(int(_list_lengths(split).sum()) if saving.ragged else len(split) for split in splits)
    return FLOAT32_BYTES * saving.numbers * rows


def cache_activations(
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
        key: settings that determine the activations; activations cached with this dataset and key are reused.
        batch_size: number of samples that are computed together, if all have the same length.
        folder: folder for the file of activations; None to store them in memory.
        compute: function that computes the activations of samples, augmented as in an epoch, or not if it is None.
        report: function that reports that the activations of a split have been computed.

    Returns:
        The dataset of activations, and the split network.

    Raises:
        StorageError: if the disk has no space for the file.
    """
    division, outputs = _split_network(model, tuple(x.to(device) for x in take_first_sample(dataset)))
    view_epochs: list[int | None] = [*range(dataset.views)] or [None]
    splits = [*[dataset.train] * len(view_epochs), dataset.validation]
    storages = _find_storage(dataset, f"{key} {division.name}", splits, outputs, folder)

    def make_activations(split: Split, epoch: int | None, rows: CachedRows) -> Activations:
        view = "" if epoch is None else f", view {epoch + 1} of {len(view_epochs)},"
        return Activations(
            split,
            rows,
            _group_samples(split, batch_size, rows.offsets is not None),
            lambda ids: compute(division, split, ids, epoch),
            lambda text: report(f"{division.name}{view} {text}"),
        )

    *train_storages, validation_storage = storages
    train_views = [make_activations(dataset.train, *view) for view in zip(view_epochs, train_storages, strict=True)]
    validation = make_activations(dataset.validation, None, validation_storage)
    train = Views(train_views) if dataset.views else train_views[0]
    cached = replace(dataset, train=train, validation=validation, prepare=keep_unchanged, mixable=False)
    return cached, division


def take_first_sample(dataset: Dataset) -> Inputs:
    """Take the first training sample, preprocessed as in evaluation."""
    ids = np.zeros(1, np.int64)
    return dataset.prepare(dataset.train.gather(ids), ids, None)


def _split_network(model: nn.Module, inputs: Inputs) -> tuple[FrozenSplit, Inputs]:
    """Split the network; also returns the activations that its frozen prefix computes from these inputs."""
    division = frozen_split.split_network(model, inputs)
    assert division is not None, "refused where there is no frozen prefix"
    with frozen_split.evaluating(model), torch.no_grad():
        return division, division.prefix(*inputs)


def _find_storage(
    dataset: Dataset, key: str, splits: list[Split], outputs: Inputs, folder: Path | None
) -> list[CachedRows]:
    """Return storage for each split: from an earlier call with this key, or new storage, which replaces all other."""
    if key not in dataset.cache:
        dataset.cache.clear()
        dataset.cache[key] = [_allocate_rows(split, outputs, folder) for split in splits]
    storages: list[CachedRows] = dataset.cache[key]
    return storages


def _allocate_rows(split: Split, outputs: Inputs, folder: Path | None) -> CachedRows:
    """Allocate storage for the activations of a split with the shape of `outputs`."""
    ragged = len(outputs) > 1
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(_list_lengths(split))]) if ragged else None
    count = int(offsets[-1]) if offsets is not None else len(split)
    shape = (count, *outputs[0].shape[2 if ragged else 1 :])
    return CachedRows(np.empty(shape, np.float32) if folder is None else _map_file(folder, shape), offsets)


def _group_samples(split: Split, batch_size: int, ragged: bool) -> list[Ids]:
    """Group samples of similar length, which saves padding; the groups depend only on the data."""
    if not ragged:
        return np.array_split(np.arange(len(split), dtype=np.int64), -(-len(split) // batch_size))
    lengths = _list_lengths(split)
    order = np.argsort(lengths, kind="stable").astype(np.int64)
    starts = [0]
    for position, sample_id in enumerate(order.tolist()):
        # This sample is the longest of the group so far; all samples are padded to its length.
        if position > starts[-1] and (position + 1 - starts[-1]) * lengths[sample_id] > TOKENS_PER_GROUP:
            starts.append(position)
    return [order[start:end] for start, end in pairwise([*starts, len(order)])]


def _list_lengths(split: Any) -> npt.NDArray[np.int64]:
    return split.lengths  # type: ignore[no-any-return]


def _map_file(folder: Path, shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
    """Map an unlinked file into memory, and reserve its disk space now: a full disk would later kill the process."""
    with tempfile.TemporaryFile(dir=folder) as file:
        reserve_space(file, FLOAT32_BYTES * prod(shape), folder)
        return np.memmap(file, np.float32, "r+", shape=shape)
