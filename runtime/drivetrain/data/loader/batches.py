"""Orders the samples of an epoch, groups them into batches, and fetches the batches.

The order is a function of (seed, epoch), so it is never saved: a resumed run continues with the same batches.
"""

from __future__ import annotations

import contextlib
import inspect
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from drivetrain.data import stateless_random
from drivetrain.data.dataset import Batch, ChangesByEpoch, JointTargets, Masked, Order, Split, count_tokens
from drivetrain.data.loader.workers import SharedMemory, WorkerSettings
from drivetrain.data.stateless_random import Ids
from drivetrain.errors import DataError, DrivetrainError
from drivetrain.system.console import say


class SequentialOrder:
    """All samples in the order of the dataset, in every epoch."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __call__(self, epoch: int) -> Ids:
        return np.arange(self.count, dtype=np.int64)


class WeightedOrder:
    """Samples drawn by weight, from (seed, epoch).

    Args:
        weights: one weight per sample, not negative.
        count: number of samples in an epoch.
        replacement: whether a sample can occur more than once in an epoch.
    """

    def __init__(self, weights: Iterable[float], count: int, replacement: bool, seed: int) -> None:
        raw_weights = np.asarray(torch.as_tensor(weights).double().cpu())
        self.shares, self.count = raw_weights / raw_weights.sum(), count
        self.replacement, self.seed = replacement, seed

    def __call__(self, epoch: int) -> Ids:
        random = stateless_random.make_generator(self.seed, "order", epoch)
        return random.choice(len(self.shares), self.count, self.replacement, self.shares).astype(np.int64)


class SamplerOrder:
    """Order of a user's sampler, which is iterated again for each epoch.

    Before each epoch the global generators and the generator of the sampler are seeded by (seed, epoch), and its
    `set_epoch` is called. So a resumed run has the same order, unless the sampler keeps its own state.

    Raises:
        DataError: if the sampler yields anything but ids.
    """

    def __init__(self, sampler: Any, size: int, seed: int, name: str) -> None:
        self.sampler, self.size, self.seed, self.name = sampler, size, seed, name
        self.latest: tuple[int, Ids] | None = None
        """Epoch that was drawn last, and its ids."""
        self.count = len(self._draw(0))
        self.is_repeatable = np.array_equal(self._draw(0), self._draw(0))
        """Whether drawing an epoch again gives the same order."""

    def __call__(self, epoch: int) -> Ids:
        if self.latest is None or self.latest[0] != epoch:
            ids = self._draw(epoch)
            if len(ids) != self.count:
                raise DataError(
                    f"its sampler yields {len(ids):,} samples in epoch {epoch + 1}, but {self.count:,} in the first epoch",
                    "epochs of equal length, because the schedule depends on it",
                    "yield the same number in every epoch",
                    key=self.name,
                )
            self.latest = epoch, ids
        return self.latest[1]

    def _draw(self, epoch: int) -> Ids:
        """Seed and iterate the sampler, and check its ids."""
        key = stateless_random.derive_key(self.seed, "order", epoch)
        stateless_random.seed_globally(key)
        generator = getattr(self.sampler, "generator", None)
        if isinstance(generator, torch.Generator):
            generator.manual_seed(key)
        set_epoch = getattr(self.sampler, "set_epoch", None)
        if inspect.ismethod(set_epoch):
            set_epoch(epoch)
        ids = np.asarray(list(self.sampler))
        if ids.ndim != 1 or ids.dtype.kind not in "iu" or not len(ids) or ids.min() < 0 or ids.max() >= self.size:
            raise DataError(
                f"its sampler does not yield indices of the {self.size:,} samples",
                f"whole numbers from 0 to {self.size - 1}",
                "correct the sampler; a batch_sampler is another argument of a DataLoader",
                key=self.name,
            )
        return ids.astype(np.int64)


READY_BATCHES = 2
"""Number of batches that a thread prepares ahead."""


class Batches:
    """Training batches of every epoch.

    Args:
        batch_size: number of samples per batch; the last batch of an epoch may be smaller.
        sample_order: the order of the samples; None to shuffle all samples by (seed, epoch).
        drop_last: whether to drop a smaller last batch.
    """

    def __init__(
        self, split: Split, batch_size: int, seed: int, sample_order: Order | None = None, *, drop_last: bool = False
    ) -> None:
        self.split, self.batch_size, self.seed, self.sample_order = split, batch_size, seed, sample_order
        self.drop_last = drop_last
        self.joins_single_sample = False
        """Whether a last batch of one sample is joined to the previous batch, since the network needs two samples."""
        self.workers = 0
        self.pin = False
        self.report: Callable[[str], None] = say
        self.select_local: Callable[[Ids], Ids] = lambda ids: ids
        """Function that selects the ids of a batch that this rank fetches."""
        self.shared_memory = SharedMemory()

    @property
    def per_epoch(self) -> int:
        """Number of batches in an epoch."""
        return len(range(0, self.samples, self.batch_size)) - (
            self.joins_single_sample and self.ends_with_single_sample
        )

    @property
    def ends_with_single_sample(self) -> bool:
        """Whether the last batch of an epoch has one sample before it is joined to the previous batch."""
        return self.samples > self.batch_size and self.samples % self.batch_size == 1

    @property
    def samples(self) -> int:
        """Number of samples in an epoch."""
        count = self.sample_order.count if self.sample_order else len(self.split)
        return count - count % self.batch_size if self.drop_last else count

    def join_single_sample(self) -> None:
        """Join a last batch of one sample to the previous batch: the network needs two samples."""
        self.joins_single_sample = True
        if self.ends_with_single_sample:
            self.report(
                "the last batch of an epoch would be a single sample, which BatchNorm cannot normalize, so the batch before it "
                f"gets it and has {self.batch_size + 1} samples"
            )

    def order(self, epoch: int, start: int = 0) -> list[Ids]:
        """Return the sample ids of each batch of an epoch, starting at batch `start`."""
        return self._split_into_batches(self._order_samples(epoch), start)

    def _order_samples(self, epoch: int) -> Ids:
        """Return the ids of the samples of an epoch, in order, without the samples of a dropped last batch."""
        if self.sample_order:
            return self.sample_order(epoch)[: self.samples]
        return stateless_random.shuffle_samples(self.seed, epoch, len(self.split))[: self.samples]

    def _split_into_batches(self, ids: Ids, start: int) -> list[Ids]:
        """Split ids into batches from number `start` on; the last has all remaining ids, also a joined single one."""
        starts = range(start * self.batch_size, self.per_epoch * self.batch_size, self.batch_size)
        return [ids[begin:end] for begin, end in pairwise([*starts, len(ids)])]

    def size(self, batch: int) -> int:
        """Return the size of batch number `batch` of an epoch, over all ranks."""
        return self.batch_size if batch < self.per_epoch - 1 else self.samples - batch * self.batch_size

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """Return the batches of one epoch, starting at batch `start`."""
        ids = self._order_samples(epoch)
        if self.sample_order and isinstance(self.split, JointTargets) and isinstance(self.split, ChangesByEpoch):
            # A repeated sample gets another id each time, so its augmentation gets other random numbers.
            ids = ids + len(self.split) * stateless_random.count_earlier_draws(ids)
        groups = [self.select_local(group) for group in self._split_into_batches(ids, start)]
        split = self.split.at_epoch(epoch) if isinstance(self.split, ChangesByEpoch) else self.split
        workers = self.workers_for(split, max(map(len, groups), default=0))
        return fetch(split, groups, workers=workers, pin=self.pin, report=self.report)

    def workers_for(self, split: Split, count: int) -> int:
        """Return the number of workers that can prepare batches of up to `count` samples, limited by shared memory."""
        workers, reason = self.shared_memory.workers(split, count, self.workers)
        if reason:
            self.report(reason)
        return workers


def fetch_in_order(
    split: Split,
    batch_size: int,
    *,
    workers: int = 0,
    pin: bool = False,
    report: Callable[[str], None] = say,
    shard: tuple[int, int] = (0, 1),
) -> Iterator[Batch]:
    """Yield all samples once, in order, for evaluation; `shard` (i, n) selects part i, from 0, of n equal parts."""
    index, count = shard
    ids = torch.arange(len(split) * index // count, len(split) * (index + 1) // count).numpy()
    groups = [ids[start : start + batch_size] for start in range(0, len(ids), batch_size)]
    return fetch(split, groups, workers=workers, pin=pin, report=report)


def fetch(
    split: Split, groups: Sequence[Ids], *, workers: int = 0, pin: bool = False, report: Callable[[str], None] = say
) -> Iterator[Batch]:
    """Yield one batch per group of ids, prepared by worker processes, a thread (for pinned memory) or this thread."""
    source = _BatchSource(split)
    if workers == 0 and not pin:
        return map(source.__getitem__, groups)
    if workers == 0 and source.joint_split is None:
        return prefetch(lambda ids: source[ids].pin_memory(), groups)
    if workers == 0:
        # A user's dataset may draw from the global generators, as a training step does, so it gets no parallel thread.
        return (source[ids].pin_memory() for ids in groups)
    return _receive(WorkerSettings(workers, pin, report).prepare(_WorkerDataset(source), groups))


class _BatchSource(torch.utils.data.Dataset[Batch]):
    """Mapping from groups of ids to batches, so that torch's DataLoader can distribute the groups."""

    def __init__(self, split: Split) -> None:
        self.split = split
        self.joint_split = split if isinstance(split, JointTargets) else None

    def __getitem__(self, ids: Ids) -> Batch:
        if self.joint_split is not None:
            return Batch(ids % len(self.split), *self.joint_split.samples(ids))
        index = torch.from_numpy(ids)
        inputs, targets = self.split.gather(ids), {name: y[index] for name, y in self.split.targets.items()}
        # Tokens are counted here, while the mask is still on the host.
        masked = isinstance(self.split, Masked) and self.split.masked
        return Batch(ids, inputs, targets, count_tokens(inputs[-1]) if masked else None)


class _WorkerDataset(torch.utils.data.Dataset[Batch | DrivetrainError]):
    """Mapping in a worker process; it returns a DrivetrainError, since torch turns a raised one into text."""

    def __init__(self, source: _BatchSource) -> None:
        self.source = source

    def __getitem__(self, ids: Ids) -> Batch | DrivetrainError:
        try:
            return self.source[ids]
        except DrivetrainError as error:
            return error


def _receive(results: Generator[Batch | DrivetrainError]) -> Iterator[Batch]:
    """Yield the batches of workers, and raise the errors that they return; closing this generator ends the workers."""
    with contextlib.closing(results):
        for result in results:
            if isinstance(result, DrivetrainError):
                raise result
            yield result


def prefetch(make: Callable[[Ids], Batch], groups: Sequence[Ids]) -> Iterator[Batch]:
    """Yield `make(ids)` for each group of ids, made in a thread while the caller uses earlier batches.

    An exception in the thread is raised when its batch is due.
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
