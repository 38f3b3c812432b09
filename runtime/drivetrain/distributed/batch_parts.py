"""Cuts each batch into a fixed number of parts, so that what is learned does not depend on the number of processes.

Dropout is drawn for each part, and BatchNorm normalizes each part by itself. A process computes one part or several; so
a run that continues with another number of processes computes the same, up to rounding.

A batch also has a short digest, the same for any number of processes that share it: each sample has a number that looks
random, each process adds up those of its own samples, and the sum over the processes is that of the batch. A sample
that is missing, there twice, or another one changes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from drivetrain.distributed.ranks import Ranks


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
        """The parts that this process computes of a batch of `samples`, one after another in the batch.

        If the batch is too small to be cut, every process computes the whole as a single part. `all_reduce_sum` sums
        loss and weights over the processes, so that factor cancels out.
        """
        if self.is_whole(samples):
            return [Part(0, 0, samples)]
        ranks = self.ranks
        first, end = (self.count * rank // ranks.count for rank in (ranks.number, ranks.number + 1))
        bounds = [samples * number // self.count for number in range(first, end + 1)]
        return [Part(first + i, bounds[i], bounds[i + 1] - bounds[i]) for i in range(end - first)]

    def computed(self, samples: int) -> int:
        """How many samples all processes together compute of a batch of `samples`; one that each computes counts each time."""
        return samples * self.ranks.count if self.is_whole(samples) else samples

    def is_whole(self, samples: int) -> bool:
        """Whether a batch of `samples` is too small to be cut into the parts, so that each process computes all of it."""
        # BatchNorm cannot normalize a single sample, so a small last batch is not cut into those.
        return samples < (2 if self.batch_size >= 2 * self.count else 1) * self.count

    def shard(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The samples of a batch that this process computes."""
        rank_parts = self.own(len(ids))
        return ids[rank_parts[0].start : rank_parts[-1].start + rank_parts[-1].samples]


DIGEST_BITS = 48
"""Few enough for a float64."""
_GAMMA, _FIRST, _SECOND = (np.uint64(n) for n in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


def hash_samples(ids: npt.NDArray[np.int64]) -> float:
    """The sum of the numbers of some samples, in any order; a whole number of DIGEST_BITS bits."""
    # The finalizer of SplitMix64 (Steele, Lea, Flood 2014).
    mixed = (ids.astype(np.uint64) + np.uint64(1)) * _GAMMA
    mixed = (mixed ^ (mixed >> np.uint64(30))) * _FIRST
    mixed = (mixed ^ (mixed >> np.uint64(27))) * _SECOND
    return float(int((mixed ^ (mixed >> np.uint64(31))).sum(dtype=np.uint64)) % 2**DIGEST_BITS)


def digest_batch(numbers: Sequence[float], *, shared: bool = True) -> str:
    """The digest of a batch.

    Args:
        numbers: of what each process has computed.
        shared: whether each has computed its own samples, and not all of them the whole batch.
    """
    total = sum(map(int, numbers)) if shared else int(numbers[0])
    return f"{total % 2**DIGEST_BITS:012x}"
