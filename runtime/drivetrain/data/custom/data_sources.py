"""Converts data that a Python program passes (arrays, datasets, iterables, torch's DataLoaders), or that the function
of a job returns, to one form.

An iterable is read in its order, in this process. If several processes train together, each reads its own samples.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

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

from drivetrain.data.custom.iterables import StreamSplit
from drivetrain.data.custom.map_dataset import FORMS, Collate, describe
from drivetrain.data.custom.user_errors import blame_user_code
from drivetrain.data.dataset import Order
from drivetrain.data.loader.batches import SamplerOrder, SequentialOrder, WeightedOrder
from drivetrain.distributed import world
from drivetrain.errors import DataError

PLAN_DECIDES_NOTE = (
    'its workers, pinned memory, worker_init_fn and generator are not used: the plan, or optimize={"loader_workers": N}, and '
    "seed= decide"
)


@dataclass(frozen=True)
class DataSource:
    """Argument `train_data` or `validation_data`, before it is opened."""

    name: str
    """Name of the argument."""
    data: Any
    """The data itself; for a DataLoader, its dataset."""
    collate: Collate = default_collate
    batch_size: int | None = None
    """Number of samples in a batch of the DataLoader; None without one."""
    drop_last: bool = False
    """Whether the DataLoader drops a smaller last batch."""
    sampler: Any = None
    """Sampler of the DataLoader; None to shuffle all samples."""
    loader: Any = None
    """The DataLoader; None without one."""

    @property
    def streams(self) -> bool:
        """Whether the data is an iterable without access by index."""
        return isinstance(self.data, IterableDataset) or (
            hasattr(self.data, "__iter__") and not hasattr(self.data, "__getitem__")
        )

    @property
    def order(self) -> str:
        """Kind of order of the training samples, as the spec of a run stores it."""
        if self.streams:
            return "stream"
        return "shuffled" if self.sampler is None else type(self.sampler).__name__


def open_source(value: object, name: str) -> DataSource:
    """Open data that the function of a job returned.

    Raises:
        DataError: if it can be read only once, or is a DataLoader.
    """
    if isinstance(value, DataLoader):
        raise DataError(f"{name}: is {describe(value)}, and the job makes the batches", FORMS, "pass its dataset")
    return unwrap_source(value, name)


def unwrap_source(value: object, name: str) -> DataSource:
    """Separate a data argument into the data and the settings of a DataLoader.

    Raises:
        DataError: if it can be read only once, or is a DataLoader that does not make its batches from single samples.
    """
    if not isinstance(value, DataLoader):
        if isinstance(value, Iterable) and not hasattr(value, "__getitem__") and iter(value) is value:
            raise DataError(
                f"{name}: is {describe(value)}, which can be read only once",
                f"{FORMS}, or an IterableDataset",
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
    """Build the order of the training samples; None for a shuffle by (seed, epoch).

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


GIVE_STEPS = (
    "give epoch_steps under train, such as `epoch_steps: 100` (in Python epoch_steps=100): the steps of an epoch, after which it is "
    "evaluated"
)


def count_processes() -> int:
    """Return the number of processes that train together."""
    return int(os.environ.get(world.WORLD_SIZE, "1"))


def open_training(data_source: DataSource, seed: int, batch_size: int, epoch_steps: int | None) -> Any:
    """Convert the training data to a form that `map_dataset.open_split` accepts.

    An epoch of an iterable has `epoch_steps` batches, or is as long as the iterable.

    Raises:
        DataError: if an iterable has no length, or `epoch_steps` is given for other data.
    """
    if not data_source.streams:
        if epoch_steps is not None:
            raise DataError(
                f"epoch_steps is {epoch_steps}, and {data_source.name} has a length of its own",
                "epoch_steps for an iterable; an epoch of other data has every sample once",
                "leave it out; `steps` ends a training after so many steps",
            )
        return data_source.data
    processes = count_processes()
    if processes > 1 and epoch_steps is None:
        raise DataError(
            f"{data_source.name}: is an iterable, of which each of {processes} processes reads its own samples",
            "one number of steps in an epoch for all of them",
            GIVE_STEPS,
        )
    try:
        size = len(data_source.data) if epoch_steps is None else epoch_steps * batch_size
    except TypeError:
        raise DataError(
            f"{data_source.name}: is {describe(data_source.data)}, an iterable without a length",
            "a known number of steps in an epoch, on which the schedule depends",
            f"{GIVE_STEPS}; or write __len__",
        ) from None
    return StreamSplit(data_source.name, data_source.data, seed, size, data_source.collate)


def open_validation(data_source: DataSource, seed: int) -> Any:
    """Convert the validation data for `map_dataset.open_split`; an iterable is read into memory."""
    if data_source.streams:
        with blame_user_code(DataError, f"{data_source.name}: raised"):
            return list(data_source.data)
    if data_source.sampler is None or type(data_source.sampler) is SequentialSampler:
        return data_source.data
    sample_order = build_order(data_source, seed)
    assert sample_order is not None
    return Subset(data_source.data, sample_order(0).tolist())


def describe_use(train: DataSource, validation_source: DataSource, sample_order: Order | None) -> list[str]:
    """Return notes on how DataLoaders and iterables are used."""
    lines = []
    if train.loader is not None:
        lines.append(f"train_data: {_describe_order(train, sample_order)}; {PLAN_DECIDES_NOTE}")
    processes = count_processes()
    if train.streams and processes > 1:
        lines.append(
            f"{train.name}: an iterable; each of {processes} processes reads the samples that it yields there, a part of each batch, "
            "and a resumed epoch reads them again up to its batch"
        )
    elif train.streams:
        way = (
            "continues from its state_dict()" if hasattr(train.data, "state_dict") else "reads it again up to its batch"
        )
        lines.append(f"{train.name}: an iterable is read by this process; a resumed epoch {way}")
    if isinstance(sample_order, SamplerOrder) and not sample_order.is_repeatable:
        lines.append(
            f"train_data: {train.order} yields another order each time, even for the same seed and epoch: a resumed epoch "
            "is not the same"
        )
    if validation_source.loader is not None:
        lines.append(f"validation_data: every sample once, in batches that the runtime chooses; {PLAN_DECIDES_NOTE}")
    if validation_source.streams:
        lines.append(f"{validation_source.name}: the iterable was read into memory")
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
