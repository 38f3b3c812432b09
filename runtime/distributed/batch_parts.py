"""Cuts each batch into a fixed number of parts, so that what is learned does not depend on the number of processes.

Dropout is drawn for each part, and BatchNorm normalizes each part by itself. A process computes one part or several; so
a run that continues with another number of processes computes the same, up to rounding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from runtime.distributed.ranks import Ranks

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


@dataclass(frozen=True)
class Part:
    """One part of a batch."""

    number: int
    """Among the parts of the batch, from 0."""
    start: int
    """Its first sample in the batch."""
    samples: int


@dataclass
class BatchParts:
    """How the batches of a run are cut, and which parts this process computes."""

    ranks: Ranks
    count: int
    """Parts of a batch; at least one for each process."""
    batch_size: int
    """Samples of a batch; the last one of an epoch may have fewer."""

    def own(self, samples: int) -> list[Part]:
        """The parts that this process computes of a batch of so many samples, one after another in the batch.

        Of a batch that is too small for so many parts, every process computes the whole as a single one. `all_reduce_sum`
        sums loss and weights over the processes, so that factor cancels out.
        """
        if self.is_whole(samples):
            return [Part(0, 0, samples)]
        ranks = self.ranks
        first, end = (self.count * rank // ranks.count for rank in (ranks.number, ranks.number + 1))
        bounds = [samples * number // self.count for number in range(first, end + 1)]
        return [Part(first + i, bounds[i], bounds[i + 1] - bounds[i]) for i in range(end - first)]

    def computed(self, samples: int) -> int:
        """Samples that all processes together compute of a batch of so many, each time one is computed."""
        return samples * self.ranks.count if self.is_whole(samples) else samples

    def is_whole(self, samples: int) -> bool:
        """Whether a batch of so many samples is too small for the parts, so that each process computes all of it."""
        # BatchNorm cannot normalize a single sample, so a small last batch is not cut into those.
        return samples < (2 if self.batch_size >= 2 * self.count else 1) * self.count

    def shard(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The samples of a batch that this process computes."""
        own = self.own(len(ids))
        return ids[own[0].start : own[-1].start + own[-1].samples]
