"""Orders of the training samples, other than a shuffle of all of them; each is a function of the epoch."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import numpy as np
import torch

from drivetrain.data import stateless_random
from drivetrain.data.stateless_random import Ids
from drivetrain.errors import DataError


class Order(Protocol):
    """Which samples an epoch has, and in which order."""

    count: int
    """Number of samples in an epoch."""

    def __call__(self, epoch: int) -> Ids:
        """The ids of the epoch's samples; shape (count,), int64."""
        ...


class SequentialOrder:
    """All samples in the order of the dataset, in every epoch."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __call__(self, epoch: int) -> Ids:
        return np.arange(self.count, dtype=np.int64)


class WeightedOrder:
    """Samples drawn by weight, from (seed, epoch).

    Args:
        weights: one for each sample, not negative.
        count: samples of an epoch.
        replacement: whether a sample can come more than once in an epoch.
    """

    def __init__(self, weights: Iterable[float], count: int, replacement: bool, seed: int) -> None:
        raw_weights = np.asarray(torch.as_tensor(weights).double().cpu())
        self.shares, self.count = raw_weights / raw_weights.sum(), count
        self.replacement, self.seed = replacement, seed

    def __call__(self, epoch: int) -> Ids:
        random = stateless_random.make_generator(self.seed, "order", epoch)
        return random.choice(len(self.shares), self.count, self.replacement, self.shares).astype(np.int64)


class SamplerOrder:
    """The order of a sampler of the user, which is iterated anew for each epoch.

    Before each epoch the global generators and the generator of the sampler are seeded by (seed, epoch), and its
    `set_epoch` is called. So a resumed run has the same order, unless the sampler keeps a state of its own.

    Raises:
        DataError: if the sampler has no length, or yields something else than ids.
    """

    def __init__(self, sampler: Any, size: int, seed: int, name: str) -> None:
        self.sampler, self.size, self.seed, self.name = sampler, size, seed, name
        self.latest: tuple[int, Ids] | None = None
        """The epoch that was drawn last, and its ids."""
        self.count = len(self._draw(0))
        self.is_repeatable = np.array_equal(self._draw(0), self._draw(0))
        """Whether drawing an epoch again gives the same order."""

    def __call__(self, epoch: int) -> Ids:
        if self.latest is None or self.latest[0] != epoch:
            ids = self._draw(epoch)
            if len(ids) != self.count:
                raise DataError(
                    f"{self.name}: its sampler yields {len(ids):,} samples in epoch {epoch + 1}, and had "
                    f"{self.count:,} in the first",
                    "epochs of one length, on which the schedule depends",
                    "yield as many in every epoch",
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
                f"{self.name}: its sampler does not yield indices of the {self.size:,} samples",
                f"whole numbers from 0 to {self.size - 1}",
                "correct the sampler; a batch_sampler is another argument of a DataLoader",
            )
        return ids.astype(np.int64)


class StreamOrder:
    """The order of streamed samples: a function of (seed, epoch, rows of the shards, streams, window, batch size).

        shards     permuted, and laid end to end
        streams    the row of all samples is cut into equal consecutive spans
        windows    inside a span, the samples of a few shards are shuffled together
        batches    each takes its share from every span; inside a batch, samples of a span stand together, so that the
                   processes that share a batch read different spans

    There is nothing to save: a resumed run, other workers and other processes get the same batches. It never depends on how
    many of them there are.

    Args:
        sizes: samples of each shard; those of a shard have consecutive ids.
        streams: spans that are read at the same time.
        window: shards of a span whose samples are shuffled together.
    """

    def __init__(self, sizes: Sequence[int], seed: int, streams: int, window: int, batch_size: int) -> None:
        self.sizes = np.asarray(sizes, np.int64)
        self.starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(self.sizes)])
        self.count = int(self.starts[-1])
        self.seed, self.window, self.batch_size = seed, window, batch_size
        self.streams = max(1, min(streams, self.count))
        self.latest: tuple[int, Ids] | None = None
        """The epoch that was ordered last, and its ids."""

    def __call__(self, epoch: int) -> Ids:
        """The ids of the epoch's samples; shape (count,), int64."""
        if self.latest is None or self.latest[0] != epoch:
            self.latest = epoch, self._order(epoch)
        return self.latest[1]

    def windows(self, epoch: int) -> list[list[Ids]]:
        """The ids of each window before they are shuffled, by span."""
        shards = stateless_random.make_generator(self.seed, "shards", epoch).permutation(len(self.sizes))
        laid = np.concatenate([np.arange(self.starts[shard], self.starts[shard + 1]) for shard in shards])
        # Where each shard ends in the row of all samples.
        ends = np.cumsum(self.sizes[shards])
        cuts = [self.count * span // self.streams for span in range(self.streams + 1)]
        by_span = []
        for start, end in itertools.pairwise(cuts):
            inner = np.unique(ends[(ends > start) & (ends < end)])
            # The last `window` shards, or fewer, are a window of their own.
            places = [start, *inner[self.window - 1 :: self.window].tolist(), end]
            by_span.append([laid[a:b] for a, b in itertools.pairwise(places) if b > a])
        return by_span

    def _order(self, epoch: int) -> Ids:
        spans = []
        for number, span in enumerate(self.windows(epoch)):
            random = stateless_random.make_generator(self.seed, "window", epoch, number)
            spans.append(np.concatenate([random.permutation(window) for window in span]))
        # Spans differ in length by at most one.
        least = min(map(len, spans))
        ids = np.stack([span[:least] for span in spans], axis=1).reshape(-1)
        ids = np.concatenate([ids, *(span[least:] for span in spans)])
        longer_spans = [number for number, span in enumerate(spans) if len(span) > least]
        origin = np.concatenate([np.tile(np.arange(self.streams), least), np.array(longer_spans, np.int64)])
        batch = np.arange(self.count) // self.batch_size
        return np.asarray(ids[np.lexsort((origin, batch))], np.int64)
