"""Reads the samples of a user's iterable in its order, in this process, and makes batches of them."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import default_collate

from drivetrain.data import stateless_random
from drivetrain.data.custom.map_dataset import Collate, ItemSplit
from drivetrain.data.custom.user_errors import blame_user_code
from drivetrain.data.dataset import Batch, Dataset
from drivetrain.data.loader.batches import Batches
from drivetrain.data.loader.orders import SequentialOrder
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
        with blame_user_code(lambda error, action: DataError(f"{self.name}: __iter__ raised {error}", "", action)):
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
        with blame_user_code(
            lambda error, action: DataError(f"{self.name}: batch {batch_number + 1} raised {error}", "", action)
        ):
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
