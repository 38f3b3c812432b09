"""Batches: their order, and how they are fetched.

The order is a function of (seed, epoch), so nothing needs to be saved: a resumed run continues from its step with the
same batches.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise

import torch

from drivetrain.data import host_lengths, stateless_random
from drivetrain.data.dataset import Batch, ChangesByEpoch, FetchesAhead, JointTargets, Masked, Split
from drivetrain.data.loader import workers as crews
from drivetrain.data.loader.orders import Order
from drivetrain.data.loader.workers import SharedMemory
from drivetrain.data.stateless_random import Ids
from drivetrain.errors import DrivetrainError
from drivetrain.system.console import say

READY_BATCHES = 2
"""Number of batches that are kept ready."""


class Batches:
    """The training batches of every epoch.

    Args:
        split: the samples.
        batch_size: samples per batch; the last batch of an epoch may be smaller.
        seed: the run's seed.
        sample_order: the order of the samples; None to shuffle all of them, by (seed, epoch).
        drop_last: whether to leave out a smaller last batch.
    """

    def __init__(
        self, split: Split, batch_size: int, seed: int, sample_order: Order | None = None, *, drop_last: bool = False
    ) -> None:
        self.split, self.batch_size, self.seed, self.sample_order = split, batch_size, seed, sample_order
        self.drop_last = drop_last
        self.joins_single = False
        """Whether a last batch of one sample joins the one before, since the network needs two."""
        self.workers = 0
        self.pin = False
        self.tell: Callable[[str], None] = say
        self.shard: Callable[[Ids], Ids] = lambda ids: ids
        """Selects the ids of a batch that this rank fetches."""
        self.handover = SharedMemory()

    @property
    def per_epoch(self) -> int:
        """Number of batches in an epoch."""
        return len(range(0, self.samples, self.batch_size)) - (self.joins_single and self.leaves_single)

    @property
    def leaves_single(self) -> bool:
        """Whether the last batch of an epoch is a single sample, unless it joins the one before."""
        return self.samples > self.batch_size and self.samples % self.batch_size == 1

    @property
    def samples(self) -> int:
        """Number of samples in an epoch."""
        count = self.sample_order.count if self.sample_order else len(self.split)
        return count - count % self.batch_size if self.drop_last else count

    def join_single(self) -> None:
        """Let a last batch of one sample join the one before: the network needs two samples."""
        self.joins_single = True
        if self.leaves_single:
            self.tell(
                f"the last batch of an epoch would be a single sample, which BatchNorm cannot normalize: it joins the one "
                f"before, which has {self.batch_size + 1}"
            )

    def order(self, epoch: int, start: int = 0) -> list[Ids]:
        """The sample ids of each batch of an epoch, starting at batch `start`."""
        return self._cut(self._ids(epoch), start)

    def _ids(self, epoch: int) -> Ids:
        ids = (
            self.sample_order(epoch)
            if self.sample_order
            else stateless_random.shuffle_samples(self.seed, epoch, len(self.split))
        )
        return ids[: self.samples]

    def _cut(self, ids: Ids, start: int) -> list[Ids]:
        begins = range(start * self.batch_size, self.per_epoch * self.batch_size, self.batch_size)
        return [ids[begin:end] for begin, end in pairwise([*begins, len(ids)])]

    def size(self, batch: int) -> int:
        """Size of batch number `batch` of an epoch, over all ranks."""
        return self.batch_size if batch < self.per_epoch - 1 else self.samples - batch * self.batch_size

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """The batches of one epoch, starting at batch `start`."""
        ids = self._ids(epoch)
        if self.sample_order and isinstance(self.split, JointTargets) and isinstance(self.split, ChangesByEpoch):
            ids = ids + len(self.split) * stateless_random.count_earlier_draws(ids)
        groups = [self.shard(group) for group in self._cut(ids, start)]
        split = self.split.at_epoch(epoch) if isinstance(self.split, ChangesByEpoch) else self.split
        workers = self.workers_for(split, max(map(len, groups), default=0))
        return fetch(split, groups, workers=workers, pin=self.pin, report=self.tell)

    def workers_for(self, split: Split, count: int) -> int:
        """How many workers can prepare batches of up to `count` samples; shared memory limits them."""
        workers, reason = self.handover.workers(split, count, self.workers)
        if reason:
            self.tell(reason)
        return workers


def in_order(
    split: Split,
    batch_size: int,
    *,
    workers: int = 0,
    pin: bool = False,
    report: Callable[[str], None] = say,
    share: tuple[int, int] = (0, 1),
) -> Iterator[Batch]:
    """All samples once, in order; for evaluation.

    Args:
        split: the samples.
        batch_size: samples per batch.
        workers: processes that prepare batches.
        pin: whether batches are in pinned memory.
        report: reports problems of the workers.
        share: (i, n) for the i-th of n equal shards of the samples.
    """
    first, last = (len(split) * part // share[1] for part in (share[0], share[0] + 1))
    ids = torch.arange(first, last).numpy()
    groups = [ids[i : i + batch_size] for i in range(0, len(ids), batch_size)]
    return fetch(split, groups, workers=workers, pin=pin, report=report)


def fetch(
    split: Split, groups: Sequence[Ids], *, workers: int = 0, pin: bool = False, report: Callable[[str], None] = say
) -> Iterator[Batch]:
    """One batch per group of ids, prepared in this process, ahead in worker processes or, if pinned, in a thread."""
    batches = _prepare(split, groups, workers, pin, report)
    return _fetching(split, groups, batches) if isinstance(split, FetchesAhead) else batches


def _fetching(split: FetchesAhead, groups: Sequence[Ids], batches: Iterator[Batch]) -> Iterator[Batch]:
    """The batches, while what the next ones need is fetched."""
    with split.fetch_ahead(groups) as used:
        for number, batch in enumerate(batches):
            yield batch
            used(number + 1)


def _prepare(
    split: Split, groups: Sequence[Ids], workers: int, pin: bool, report: Callable[[str], None]
) -> Iterator[Batch]:
    source = _Groups(split)
    if workers == 0 and not pin:
        return map(source.__getitem__, groups)
    if workers == 0 and source.together is None:
        return prefetch(lambda ids: source[ids].pin_memory(), groups)
    if workers == 0:
        # A user dataset may use the global generators that a training step uses: it must not run in a parallel thread.
        return (source[ids].pin_memory() for ids in groups)
    return _receive(crews.WorkerSettings(workers, pin, report).prepared(_WorkerDataset(source), groups))


class _Groups(torch.utils.data.Dataset[Batch]):
    """Maps a group of ids to a batch, so that torch's DataLoader can distribute the groups."""

    def __init__(self, split: Split) -> None:
        self.split = split
        self.together = split if isinstance(split, JointTargets) else None

    def __getitem__(self, ids: Ids) -> Batch:
        if self.together is not None:
            return Batch(ids % len(self.split), *self.together.samples(ids))
        index = torch.from_numpy(ids)
        inputs, targets = self.split.gather(ids), {name: y[index] for name, y in self.split.targets.items()}
        # Counted here, where the mask still is on the host.
        masked = isinstance(self.split, Masked) and self.split.masked
        return Batch(ids, inputs, targets, host_lengths.count_tokens(inputs[-1]) if masked else None)


class _WorkerDataset(torch.utils.data.Dataset[Batch | DrivetrainError]):
    """The same in a worker process. Errors are returned as values, since torch would turn them into traceback text."""

    def __init__(self, source: _Groups) -> None:
        self.source = source

    def __getitem__(self, ids: Ids) -> Batch | DrivetrainError:
        try:
            return self.source[ids]
        except DrivetrainError as error:
            return error


def _receive(items: Generator[Batch | DrivetrainError]) -> Iterator[Batch]:
    """What workers have prepared; an error ends them, whoever keeps it."""
    with contextlib.closing(items):
        for item in items:
            if isinstance(item, DrivetrainError):
                raise item
            yield item


def prefetch(make: Callable[[Ids], Batch], groups: Sequence[Ids]) -> Iterator[Batch]:
    """Yield `make(ids)` for each group of ids, gathered in a thread while the current batch is computed.

    An exception is raised when its batch is due.
    """
    waiting = deque[Future[Batch]]()
    pool = ThreadPoolExecutor(1, "batches ahead")
    try:
        for ids in groups:
            waiting.append(pool.submit(make, ids))
            if len(waiting) > READY_BATCHES:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
