"""Shards each batch over the ranks, and computes a digest of its samples.

Each rank adds up the hashes of its sample ids, and the sum over all ranks is the digest, which therefore does not depend
on their number. It changes if a sample is missing, repeated or replaced.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from drivetrain.distributed.ranks import Ranks


@dataclass(frozen=True)
class BatchShare:
    """Share of this rank in the loss of a batch."""

    samples: int | None = None
    """Number of samples of the batch over all ranks; None if unknown, so that their weights must be summed."""
    weight: float = 1.0
    """Weight of this rank in a loss that is a sum: 1 / number of ranks if the batch is sharded, else 1."""
    seed: int = 0
    """Seed of the random numbers of the network."""


WHOLE_BATCH = BatchShare()
"""Share of a process that trains alone."""


@dataclass(frozen=True)
class BatchSharding:
    """Shards the batches of a run over its ranks."""

    ranks: Ranks
    batch_size: int
    """Number of samples per batch over all ranks; the last batch of an epoch may have fewer."""

    @property
    def local_size(self) -> int:
        """Number of samples of a full batch that this rank computes."""
        return len(self.select_local(np.arange(self.batch_size)))

    def is_replicated(self, samples: int) -> bool:
        """Return whether a batch of `samples` samples is too small to shard, so that each rank computes all of it.

        Losses and weights are summed over the ranks, so the repetition cancels out.
        """
        # BatchNorm cannot normalize a single sample, so a rank gets one only if full batches do not allow two.
        min_samples = 2 if self.batch_size >= 2 * self.ranks.world_size else 1
        return samples < min_samples * self.ranks.world_size

    def share(self, samples: int, seed: int) -> BatchShare:
        """Return this rank's share in the loss of a batch of `samples` samples."""
        world_size = self.ranks.world_size
        if self.is_replicated(samples):
            return BatchShare(samples * world_size, 1.0, seed)  # each sample counts once in every rank
        return BatchShare(samples, 1 / world_size, seed)

    def select_local(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Select the sample ids of a batch that this rank computes, which are adjacent in the batch."""
        if self.is_replicated(len(ids)):
            return ids
        rank, world_size = self.ranks.rank, self.ranks.world_size
        return ids[len(ids) * rank // world_size : len(ids) * (rank + 1) // world_size]


DIGEST_BITS = 48
"""Number of bits of a digest, few enough for an exact float64."""
# The constants of SplitMix64 (Steele, Lea, Flood 2014).
_INCREMENT, _FACTOR_1, _FACTOR_2 = (np.uint64(n) for n in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


def hash_samples(ids: npt.NDArray[np.int64]) -> float:
    """Sum the hashes of sample ids, whose order does not matter; returns a whole number of DIGEST_BITS bits."""
    mixed = (ids.astype(np.uint64) + np.uint64(1)) * _INCREMENT
    mixed = (mixed ^ (mixed >> np.uint64(30))) * _FACTOR_1
    mixed = (mixed ^ (mixed >> np.uint64(27))) * _FACTOR_2
    return float(int((mixed ^ (mixed >> np.uint64(31))).sum(dtype=np.uint64)) % 2**DIGEST_BITS)


def digest_batch(hash_sums: Sequence[float], *, is_replicated: bool = False) -> str:
    """Compute the digest of a batch, in hexadecimal.

    Args:
        hash_sums: results of `hash_samples` by rank.
        is_replicated: whether each rank computed the whole batch.
    """
    total = int(hash_sums[0]) if is_replicated else sum(map(int, hash_sums))
    return f"{total % 2**DIGEST_BITS:012x}"
