"""The order of streamed samples: a function of (seed, epoch, rows of the shards, streams, window, batch size).

    shards     permuted, and laid end to end
    streams    the row of all samples is cut into equal consecutive spans
    windows    inside a span, the samples of a few shards are shuffled together
    batches    each takes its share from every span; inside a batch, samples of a span stand together, so that the
               processes that share a batch read different spans

There is nothing to save: a resumed run, other workers and other processes get the same batches. It never depends on how
many of them there are.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from drivetrain.data import stateless_random
from drivetrain.data.stateless_random import Ids


class StreamOrder:
    """The order of the samples of every epoch.

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
