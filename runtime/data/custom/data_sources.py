"""What a Python program passes as data: arrays, datasets, iterables and torch's DataLoader, in one form."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
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

from runtime.data.custom.arrays import FORMS, described
from runtime.data.custom.map_dataset import Collate
from runtime.data.custom.stream import StreamSplit
from runtime.data.custom.user_errors import blamed
from runtime.data.loader.orders import Order, Sampled, Sequential, Weighted
from runtime.errors import DataError

LEFT = "workers and pinned memory are decided by the plan"


@dataclass(frozen=True)
class DataSource:
    """One of the two data arguments, before it is opened."""

    name: str
    """Of the argument."""
    data: Any
    """What lies below a DataLoader."""
    collate: Collate = default_collate
    batch_size: int | None = None
    """Of the DataLoader; None without one."""
    drop_last: bool = False
    sampler: Any = None
    """Of the DataLoader; None for a shuffle of all samples."""
    loader: Any = None

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


def source(value: object, name: str) -> DataSource:
    """The form of a data argument.

    Raises:
        DataError: if it can be read only once, or is a DataLoader whose batches are not made of samples.
    """
    if not isinstance(value, DataLoader):
        if isinstance(value, Iterable) and not hasattr(value, "__getitem__") and iter(value) is value:
            raise DataError(
                f"{name}: is {described(value)}, which can be read only once",
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
    made = DataSource(name, value.dataset, collate, value.batch_size, value.drop_last, loader=value)
    return made if made.streams else _sampled(made, value.sampler)


def _sampled(made: DataSource, sampler: Any) -> DataSource:
    """The source with the order of a sampler; a plain shuffle becomes ours."""
    if type(sampler) is RandomSampler and not sampler.replacement and sampler.num_samples == len(made.data):
        return made
    if type(sampler) is SubsetRandomSampler:
        return replace(made, data=Subset(made.data, [int(index) for index in sampler.indices]))
    return replace(made, sampler=sampler)


def order(made: DataSource, seed: int) -> Order | None:
    """The order of the training samples; None for a shuffle by (seed, epoch).

    Raises:
        DataError: if the sampler does not yield indices.
    """
    sampler = made.sampler
    if sampler is None or made.streams:
        return None
    if type(sampler) is SequentialSampler:
        return Sequential(len(made.data))
    if type(sampler) is WeightedRandomSampler:
        return Weighted(sampler.weights, sampler.num_samples, sampler.replacement, seed)
    with blamed(lambda told, do: DataError(f"{made.name}: its sampler raised {told}", "", do)):
        return Sampled(sampler, len(made.data), seed, made.name)


def training(made: DataSource, seed: int, batch: int, epoch_steps: int | None) -> Any:
    """The training data in a form that `map_dataset.opened` takes.

    Args:
        made: the source.
        seed: of the run.
        batch: samples of a batch.
        epoch_steps: batches of an epoch of an iterable; None if it has a length.

    Raises:
        DataError: if an iterable has no length, or `epoch_steps` is given for other data.
    """
    if not made.streams:
        if epoch_steps is not None:
            raise DataError(
                f"epoch_steps is {epoch_steps}, and {made.name} has a length of its own",
                "epoch_steps for an iterable; an epoch of other data has every sample once",
                "leave it out; steps=N ends a training after N steps",
            )
        return made.data
    if epoch_steps is not None:
        return StreamSplit(made.name, made.data, seed, epoch_steps * batch, made.collate)
    try:
        size = len(made.data)
    except TypeError:
        raise DataError(
            f"{made.name}: is {described(made.data)}, an iterable without a length",
            "a known number of steps in an epoch, on which the schedule depends",
            "give epoch_steps=N: an epoch, and an evaluation, every N steps; or write __len__",
        ) from None
    return StreamSplit(made.name, made.data, seed, size, made.collate)


def validation(made: DataSource, seed: int) -> Any:
    """The validation data in a form that `map_dataset.opened` takes: an iterable is read into memory once."""
    if made.streams:
        with blamed(lambda told, do: DataError(f"{made.name}: raised {told}", "", do)):
            return list(made.data)
    if made.sampler is None or type(made.sampler) is SequentialSampler:
        return made.data
    chosen = order(made, seed)
    assert chosen is not None
    return Subset(made.data, chosen(0).tolist())


def notes(train: DataSource, held: DataSource, given: Order | None) -> list[str]:
    """What the user should know about how DataLoaders and iterables are used."""
    found = []
    if train.loader is not None:
        found.append(f"train_data: {_words(train, given)}; {LEFT}{_unused(train)}")
    if train.streams:
        found.append("train_data: an iterable is read by this process; a resumed epoch reads it again up to its batch")
    if isinstance(given, Sampled) and not given.repeats:
        found.append(
            f"train_data: {train.order} yields another order each time, even for the same seed and epoch: a resumed epoch "
            "is not the same"
        )
    if held.loader is not None:
        found.append(f"validation_data: every sample once, in batches that the runtime chooses; {LEFT}{_unused(held)}")
    if held.streams:
        found.append("validation_data: the iterable was read into memory")
    return found


def _words(made: DataSource, given: Order | None) -> str:
    how = "in the order of the iterable"
    if isinstance(given, Sequential):
        how = "in their order, since it does not shuffle"
    elif isinstance(given, Weighted):
        how = f"{given.count:,} of them drawn by weight, from seed and epoch"
    elif given is not None:
        how = f"in the order of its {made.order}"
    elif not made.streams:
        how = "shuffled by seed and epoch"
    rest = ", without a smaller last one" if made.drop_last else ""
    return f"samples of the DataLoader in batches of {made.batch_size}{rest}, {how}"


def _unused(made: DataSource) -> str:
    """Settings of a DataLoader that have no effect here, as a clause."""
    parts = []
    if made.loader.num_workers:
        parts.append(f'its {made.loader.num_workers} workers with optimize={{"loader_workers": N}}')
    if made.loader.worker_init_fn is not None:
        parts.append("worker_init_fn is not called: random numbers of the dataset are seeded by batch")
    if made.name == "validation_data" and made.drop_last:
        parts.append("drop_last is not used")
    if isinstance(getattr(made.loader, "generator", None), torch.Generator):
        parts.append("its generator is replaced by seed=")
    return "".join(f"; {part}" for part in parts)
