"""Iterables as training data, read in their order by this process; on resume continued from a state or read again."""

from __future__ import annotations

import inspect
import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import default_collate

from drivetrain.data import stateless_random
from drivetrain.data.custom.map_dataset import Collate, ItemSplit
from drivetrain.data.custom.user_errors import blame_user_code
from drivetrain.data.dataset import Batch, Dataset
from drivetrain.data.loader.batches import Batches, SequentialOrder
from drivetrain.data.stateless_random import Ids
from drivetrain.errors import DataError


class StreamSplit(ItemSplit):
    """Samples of an iterable, which each epoch iterates again. A resumed epoch continues from the iterable's state, or
    reads again the batches that were already trained.

    Before each epoch its `set_epoch` is called, if it has one. Before each sample the global generators are seeded by
    (seed, epoch, position), so that random numbers taken from them are the same after a resume and for each batch size.
    `__iter__` of the dataset starts from the beginning; an epoch has `samples` samples.
    """

    def __init__(self, name: str, dataset: Any, seed: int, samples: int, collate: Collate = default_collate) -> None:
        super().__init__(name, dataset, seed, None, collate)
        self.count = samples
        self.first_items: list[Any] = []
        """First samples of the first epoch, already read by checks and measurements."""
        self.place: tuple[int, int] | None = None
        """Epoch, and number of whole batches read so far; None within a batch."""

    def __len__(self) -> int:
        return self.count

    def items(self, ids: Ids) -> list[Any]:
        """Return the first items, for checks and measurements before the first step."""
        needed_count = int(ids.max()) + 1
        if needed_count > len(self.first_items):
            self.first_items = self._take_batch(self._start_epoch(0), 0, 0, np.arange(needed_count))
        return [self.first_items[index] for index in ids.tolist()]

    def all_targets(self) -> Tensor:
        """Raise an error: the targets of an iterable are unknown before training.

        Raises:
            DataError: always.
        """
        raise DataError(
            f"{self.name}: is an iterable, whose targets are not known before it is read",
            "names of the classes, in the order of the network's outputs, and class weights as numbers",
            'give names under data, `names: [a, b]` (in Python names=["a", "b"]), and class_weights by name, `{a: 2}`, in place of '
            'balanced; or `targets: numbers` (in Python targets="numbers")',
        )

    def read(
        self, epoch: int, groups: Sequence[Ids], start: int, report: Callable[[str], None], state: Any = None
    ) -> Iterator[Batch]:
        """Yield the batches of an epoch, counted from 0, starting at batch `start`.

        Args:
            groups: positions of the samples of every batch, in order; of a shared batch, only this process's samples.
            report: function that gets a note on unused samples.
            state: the result of `read_state` before batch `start`; None to read and drop the earlier batches.

        Raises:
            DataError: if the iterable raises, or ends early.
        """
        stream = self._start_epoch(epoch, state)
        first = 0 if state is None else start
        for batch, ids in enumerate(groups[first:], first):
            self.place = None
            items = self._take_batch(stream, epoch, batch, ids)
            self.place = (epoch, batch + 1)
            if batch >= start:
                yield Batch(ids, *self.convert_batch(*self.collate_items(items, ids)))
        if epoch == 0 and not hasattr(self.dataset, "set_epoch") and next(stream, None) is not None:
            report(
                f"{self.name}: an epoch ends after {self.count:,} samples, and the iterable has more; each epoch begins "
                "with the same ones, unless it has a method set_epoch(epoch) that chooses others"
            )

    def read_state(self, epoch: int, batch: int) -> Any:
        """Read the state of the iterable before a batch, by `state_dict()`; None without it, or if JSON changes it."""
        # A signal within a batch leaves the iterable between two samples of it.
        has_state = all(
            inspect.ismethod(getattr(self.dataset, name, None)) for name in ("state_dict", "load_state_dict")
        )
        if not has_state or self.place != (epoch, batch) or not _takes_nothing(self.dataset.state_dict):
            return None
        with blame_user_code(DataError, f"{self.name}: state_dict() raised"):
            state = self.dataset.state_dict()
        try:
            return state if json.loads(json.dumps(state)) == state else None
        except (TypeError, ValueError):
            return None

    def _start_epoch(self, epoch: int, state: Any = None) -> Iterator[Any]:
        """Iterate the dataset from its beginning, after a call of its `set_epoch`, or from a state."""
        stateless_random.seed_globally(stateless_random.derive_key(self.seed, "stream", self.name, epoch))
        with blame_user_code(DataError, f"{self.name}: __iter__ raised"):
            set_epoch = getattr(self.dataset, "set_epoch", None)
            if inspect.ismethod(set_epoch):
                set_epoch(epoch)
            if state is not None:
                self.dataset.load_state_dict(state)
            return iter(self.dataset)

    def _read_seeded(self, stream: Iterator[Any], epoch: int, ids: Ids) -> Iterator[Any]:
        """Yield the next samples; the generators are seeded before each, so the batch size does not matter."""
        for index in ids.tolist():
            stateless_random.seed_globally(stateless_random.derive_key(self.seed, "stream", self.name, epoch, index))
            yield from itertools.islice(stream, 1)

    def _take_batch(self, stream: Iterator[Any], epoch: int, batch_number: int, ids: Ids) -> list[Any]:
        """Take the next samples of the stream, one for each id."""
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


def _takes_nothing(function: Callable[..., Any]) -> bool:
    """Return whether a method can be called without arguments."""
    try:
        inspect.signature(function).bind()
    except (TypeError, ValueError):
        return False
    return True


class StreamBatches(Batches):
    """Batches of an iterable, in its order."""

    def __init__(self, split: StreamSplit, batch_size: int, seed: int, *, drop_last: bool) -> None:
        super().__init__(split, batch_size, seed, SequentialOrder(len(split)), drop_last=drop_last)
        self.stream = split
        self.state: tuple[int, int, Any] | None = None
        """Epoch and batch of a checkpoint, and the state of the iterable at that point."""

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """Return the batches of one epoch, starting at batch `start`."""
        groups = [self.select_local(ids) for ids in self.order(epoch)]
        state = self.state[2] if self.state and self.state[:2] == (epoch, start) else None
        batches = self.stream.read(epoch, groups, start, self.report, state)
        return (batch.pin_memory() for batch in batches) if self.pin else batches


def batches_of(dataset: Dataset, batch_size: int, seed: int) -> Batches:
    """Return the training batches of a dataset."""
    if isinstance(dataset.train, StreamSplit):
        return StreamBatches(dataset.train, batch_size, seed, drop_last=dataset.drop_last)
    return Batches(dataset.train, batch_size, seed, dataset.order, drop_last=dataset.drop_last)
