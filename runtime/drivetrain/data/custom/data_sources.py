"""Brings what a Python program passes as data (arrays, datasets, iterables, torch's DataLoaders) into one form.

An iterable is read in its order, in this process.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    WeightedRandomSampler,
    default_collate,
)

from drivetrain.data import stateless_random
from drivetrain.data.custom.map_dataset import FORMS, Collate, ItemSplit, describe
from drivetrain.data.custom.user_errors import blame_user_code
from drivetrain.data.dataset import Batch, Dataset, Order
from drivetrain.data.loader.batches import Batches, SamplerOrder, SequentialOrder, WeightedOrder
from drivetrain.data.stateless_random import Ids
from drivetrain.errors import DataError


class StreamSplit(ItemSplit):
    """Samples of an iterable. Each epoch iterates it anew, and a resumed epoch reads again the batches it had trained.

    Before each epoch its `set_epoch` is called, if it has one. Before each sample the global generators are seeded by
    (seed, epoch, position), so that random numbers taken from them are the same after a resume and for each batch size.
    `__iter__` of the dataset starts from the beginning; an epoch has `samples` of them.
    """

    def __init__(self, name: str, dataset: Any, seed: int, samples: int, collate: Collate = default_collate) -> None:
        super().__init__(name, dataset, seed, None, collate)
        self.count = samples
        self.first_items: list[Any] = []
        """The first samples of the first epoch, which checks and measurements have read."""

    def __len__(self) -> int:
        return self.count

    def items(self, ids: Ids) -> list[Any]:
        """The first items, for checks and measurements before the first step."""
        needed_count = int(ids.max()) + 1
        if needed_count > len(self.first_items):
            self.first_items = self._take_batch(self._start_epoch(0), 0, 0, np.arange(needed_count))
        return [self.first_items[index] for index in ids.tolist()]

    def all_targets(self) -> Tensor:
        """Raise an error: the targets of an iterable are not known before the training.

        Raises:
            DataError: always.
        """
        raise DataError(
            f"{self.name}: is an iterable, whose targets are not known before it is read",
            "names of the classes, in the order of the network's outputs, and class weights as numbers",
            'give names=["a", "b"], and class_weights={"a": 2} in place of balanced; or targets="numbers"',
        )

    def read(self, epoch: int, groups: Sequence[Ids], start: int, report: Callable[[str], None]) -> Iterator[Batch]:
        """Yield the batches of an epoch, counted from 0, from batch `start` on; those before are read and dropped.

        `groups` are the positions of the samples of every batch, in order; `report` gets a note on samples left over.

        Raises:
            DataError: if the iterable raises, or ends early.
        """
        stream = self._start_epoch(epoch)
        for batch, ids in enumerate(groups):
            items = self._take_batch(stream, epoch, batch, ids)
            if batch >= start:
                yield Batch(ids, *self.convert_batch(*self.collate_items(items, ids)))
        if epoch == 0 and not hasattr(self.dataset, "set_epoch") and next(stream, None) is not None:
            report(
                f"{self.name}: an epoch ends after {self.count:,} samples, and the iterable has more; each epoch begins "
                "with the same ones, unless it has a method set_epoch(epoch) that chooses others"
            )

    def _start_epoch(self, epoch: int) -> Iterator[Any]:
        """Iterate the dataset from its beginning, after a call of its `set_epoch`."""
        stateless_random.seed_globally(stateless_random.derive_key(self.seed, "stream", self.name, epoch))
        with blame_user_code(DataError, f"{self.name}: __iter__ raised"):
            set_epoch = getattr(self.dataset, "set_epoch", None)
            if inspect.ismethod(set_epoch):
                set_epoch(epoch)
            return iter(self.dataset)

    def _read_seeded(self, stream: Iterator[Any], epoch: int, ids: Ids) -> Iterator[Any]:
        """Yield the next samples; the generators are seeded before each, so the batch size does not matter."""
        for index in ids.tolist():
            stateless_random.seed_globally(stateless_random.derive_key(self.seed, "stream", self.name, epoch, index))
            yield from itertools.islice(stream, 1)

    def _take_batch(self, stream: Iterator[Any], epoch: int, batch_number: int, ids: Ids) -> list[Any]:
        """The next samples of the stream, one for each id."""
        with blame_user_code(DataError, f"{self.name}: batch {batch_number + 1} raised"):
            items = list(self._read_seeded(stream, epoch, ids))
        if len(items) < len(ids):
            raise DataError(
                f"{self.name}: the iterable ended in batch {batch_number + 1} of epoch {epoch + 1}, and {self.count:,} samples "
                "were announced",
                "as many samples in every epoch as __len__ or epoch_steps says",
                "correct __len__, or give fewer epoch_steps",
            )
        return items


class StreamBatches(Batches):
    """Batches of an iterable; the order is that of the iterable."""

    def __init__(self, split: StreamSplit, batch_size: int, seed: int, *, drop_last: bool) -> None:
        super().__init__(split, batch_size, seed, SequentialOrder(len(split)), drop_last=drop_last)
        self.stream = split

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """The batches of one epoch, starting at batch `start`; those before are read too."""
        batches = self.stream.read(epoch, self.order(epoch), start, self.report)
        return (batch.pin_memory() for batch in batches) if self.pin else batches


def batches_of(dataset: Dataset, batch_size: int, seed: int) -> Batches:
    """The training batches of a dataset."""
    if isinstance(dataset.train, StreamSplit):
        return StreamBatches(dataset.train, batch_size, seed, drop_last=dataset.drop_last)
    return Batches(dataset.train, batch_size, seed, dataset.order, drop_last=dataset.drop_last)


PLAN_DECIDES_NOTE = "workers and pinned memory are decided by the plan"


@dataclass(frozen=True)
class DataSource:
    """One of the arguments `train_data` and `validation_data`, before it is opened."""

    name: str
    """Name of the argument."""
    data: Any
    """The data itself; that of its dataset for a DataLoader."""
    collate: Collate = default_collate
    batch_size: int | None = None
    """Samples of a batch of the DataLoader; None without one."""
    drop_last: bool = False
    """Whether the DataLoader leaves out a smaller last batch."""
    sampler: Any = None
    """The DataLoader's sampler; None to shuffle all samples."""
    loader: Any = None
    """The DataLoader; None without one."""

    @property
    def streams(self) -> bool:
        """Whether the data is an iterable without access by number."""
        return isinstance(self.data, IterableDataset) or (
            hasattr(self.data, "__iter__") and not hasattr(self.data, "__getitem__")
        )

    @property
    def order(self) -> str:
        """The kind of order of the training samples, as the spec of a run stores it."""
        if self.streams:
            return "stream"
        return "shuffled" if self.sampler is None else type(self.sampler).__name__


def unwrap_source(value: object, name: str) -> DataSource:
    """Take a data argument apart: data, and the settings of a DataLoader.

    Raises:
        DataError: if it can be read only once, or is a DataLoader whose batches are not made of samples.
    """
    if not isinstance(value, DataLoader):
        if isinstance(value, Iterable) and not hasattr(value, "__getitem__") and iter(value) is value:
            raise DataError(
                f"{name}: is {describe(value)}, which can be read only once",
                f"{FORMS}, a DataLoader, or an IterableDataset",
                "make a list of it, or write a class whose __iter__ starts it anew",
            )
        return DataSource(name, value)
    if type(value.batch_sampler) is not BatchSampler and not isinstance(value.dataset, IterableDataset):
        raise DataError(
            f"{name}: is a DataLoader with a batch_sampler of its own, or with batch_size=None",
            "a batch_size, and a sampler of single samples: a batch is split where memory is short",
            "give batch_size and sampler, or the dataset itself",
        )
    if value.batch_size is None:
        raise DataError(
            f"{name}: is a DataLoader with batch_size=None, whose dataset makes the batches",
            "a dataset of single samples: a batch is split where memory is short",
            "yield single samples, and give a batch_size",
        )
    collate: Any = value.collate_fn
    data_source = DataSource(name, value.dataset, collate, value.batch_size, value.drop_last, loader=value)
    sampler: Any = value.sampler
    # torch's own shuffles are replaced by the shuffle of this package.
    is_shuffle = type(sampler) is RandomSampler and not sampler.replacement
    if data_source.streams or (is_shuffle and sampler.num_samples == len(data_source.data)):
        return data_source
    if type(sampler) is SubsetRandomSampler:
        return replace(data_source, data=Subset(data_source.data, [int(index) for index in sampler.indices]))
    return replace(data_source, sampler=sampler)


def build_order(data_source: DataSource, seed: int) -> Order | None:
    """Build the order of the training samples; None to shuffle them by (seed, epoch).

    Raises:
        DataError: if the sampler does not yield indices.
    """
    sampler = data_source.sampler
    if sampler is None or data_source.streams:
        return None
    if type(sampler) is SequentialSampler:
        return SequentialOrder(len(data_source.data))
    if type(sampler) is WeightedRandomSampler:
        return WeightedOrder(sampler.weights, sampler.num_samples, sampler.replacement, seed)
    with blame_user_code(DataError, f"{data_source.name}: its sampler raised"):
        return SamplerOrder(sampler, len(data_source.data), seed, data_source.name)


def open_training(data_source: DataSource, seed: int, batch_size: int, epoch_steps: int | None) -> Any:
    """Bring the training data into a form that `map_dataset.open_split` takes.

    An epoch of an iterable has `epoch_steps` batches, or is as long as the iterable.

    Raises:
        DataError: if an iterable has no length, or `epoch_steps` is given for other data.
    """
    if not data_source.streams:
        if epoch_steps is not None:
            raise DataError(
                f"epoch_steps is {epoch_steps}, and {data_source.name} has a length of its own",
                "epoch_steps for an iterable; an epoch of other data has every sample once",
                "leave it out; steps=N ends a training after N steps",
            )
        return data_source.data
    try:
        size = len(data_source.data) if epoch_steps is None else epoch_steps * batch_size
    except TypeError:
        raise DataError(
            f"{data_source.name}: is {describe(data_source.data)}, an iterable without a length",
            "a known number of steps in an epoch, on which the schedule depends",
            "give epoch_steps=N: an epoch, and an evaluation, every N steps; or write __len__",
        ) from None
    return StreamSplit(data_source.name, data_source.data, seed, size, data_source.collate)


def open_validation(data_source: DataSource, seed: int) -> Any:
    """Bring the validation data into a form that `map_dataset.open_split` takes; an iterable is read into memory."""
    if data_source.streams:
        with blame_user_code(DataError, f"{data_source.name}: raised"):
            return list(data_source.data)
    if data_source.sampler is None or type(data_source.sampler) is SequentialSampler:
        return data_source.data
    sample_order = build_order(data_source, seed)
    assert sample_order is not None
    return Subset(data_source.data, sample_order(0).tolist())


def describe_use(train: DataSource, validation_source: DataSource, sample_order: Order | None) -> list[str]:
    """Notes on how DataLoaders and iterables are used."""
    lines = []
    if train.loader is not None:
        lines.append(
            f"train_data: {_describe_order(train, sample_order)}; {PLAN_DECIDES_NOTE}{_describe_unused(train)}"
        )
    if train.streams:
        lines.append("train_data: an iterable is read by this process; a resumed epoch reads it again up to its batch")
    if isinstance(sample_order, SamplerOrder) and not sample_order.is_repeatable:
        lines.append(
            f"train_data: {train.order} yields another order each time, even for the same seed and epoch: a resumed epoch "
            "is not the same"
        )
    if validation_source.loader is not None:
        lines.append(
            f"validation_data: every sample once, in batches that the runtime chooses; {PLAN_DECIDES_NOTE}{_describe_unused(validation_source)}"
        )
    if validation_source.streams:
        lines.append("validation_data: the iterable was read into memory")
    return lines


def _describe_order(data_source: DataSource, sample_order: Order | None) -> str:
    """Describe the batches of a DataLoader and the order of their samples."""
    order_text = "in the order of the iterable"
    if isinstance(sample_order, SequentialOrder):
        order_text = "in their order, since it does not shuffle"
    elif isinstance(sample_order, WeightedOrder):
        order_text = f"{sample_order.count:,} of them drawn by weight, from seed and epoch"
    elif sample_order is not None:
        order_text = f"in the order of its {data_source.order}"
    elif not data_source.streams:
        order_text = "shuffled by seed and epoch"
    without_last = ", without a smaller last one" if data_source.drop_last else ""
    return f"samples of the DataLoader in batches of {data_source.batch_size}{without_last}, {order_text}"


def _describe_unused(data_source: DataSource) -> str:
    """Describe the settings of a DataLoader that have no effect here, as clauses."""
    parts = []
    if data_source.loader.num_workers:
        parts.append(f'its {data_source.loader.num_workers} workers with optimize={{"loader_workers": N}}')
    if data_source.loader.worker_init_fn is not None:
        parts.append("worker_init_fn is not called: random numbers of the dataset are seeded by batch")
    if data_source.name == "validation_data" and data_source.drop_last:
        parts.append("drop_last is not used")
    if isinstance(getattr(data_source.loader, "generator", None), torch.Generator):
        parts.append("its generator is replaced by seed=")
    return "".join(f"; {part}" for part in parts)
