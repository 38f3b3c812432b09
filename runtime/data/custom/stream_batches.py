"""The training batches of an iterable: in its order, read by this process."""

from __future__ import annotations

from collections.abc import Iterator

from runtime.data.custom.stream import StreamSplit
from runtime.data.dataset import Batch, Dataset
from runtime.data.loader.batches import Batches
from runtime.data.loader.orders import Sequential


class StreamBatches(Batches):
    """Batches of an iterable; the order is that of the iterable."""

    def __init__(self, split: StreamSplit, batch_size: int, seed: int, *, drop_last: bool) -> None:
        super().__init__(split, batch_size, seed, Sequential(len(split)), drop_last=drop_last)
        self.stream = split

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """The batches of one epoch, starting at batch `start`; those before are read too."""
        found = self.stream.read(epoch, self.order(epoch), start, self.tell)
        return (batch.pin_memory() for batch in found) if self.pin else found


def batches_of(dataset: Dataset, batch_size: int, seed: int) -> Batches:
    """The training batches of a dataset."""
    if isinstance(dataset.train, StreamSplit):
        return StreamBatches(dataset.train, batch_size, seed, drop_last=dataset.drop_last)
    return Batches(dataset.train, batch_size, seed, dataset.order, drop_last=dataset.drop_last)
