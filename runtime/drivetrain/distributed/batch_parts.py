"""Divides each batch among the processes, and computes a digest of its samples.

Each process adds up the hashes of its sample ids, and the sum over all processes is the digest, which therefore does not
depend on their number. It changes if a sample is missing, repeated or replaced.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from drivetrain.distributed.ranks import Ranks


@dataclass(frozen=True)
class BatchShare:
    """Share of this process in a batch of all processes."""

    samples: int | None = None
    """Number of samples of the batch over all processes; None if unknown, so that their weights must be summed."""
    weight: float = 1.0
    """Weight of this process: 1 / number of processes if they divide the batch, else 1."""
    seed: int = 0
    """Seed of the random numbers of the network."""


WHOLE = BatchShare()
"""Share of a process that trains without others."""


@dataclass(frozen=True)
class BatchParts:
    """Division of a run's batches among its processes."""

    ranks: Ranks
    batch_size: int
    """Number of samples per batch; the last batch of an epoch may have fewer."""

    @property
    def part_size(self) -> int:
        """Number of samples of a full batch that this process computes."""
        return len(self.select_own_samples(np.arange(self.batch_size)))

    def is_repeated(self, samples: int) -> bool:
        """Return whether a batch of `samples` samples is too small to divide, so that each process computes all of it.

        Losses and weights are summed over the processes, so the repetition cancels out.
        """
        # BatchNorm cannot normalize a single sample, so a process gets one only if full batches do not allow two.
        min_samples = 2 if self.batch_size >= 2 * self.ranks.count else 1
        return samples < min_samples * self.ranks.count

    def share(self, samples: int, seed: int) -> BatchShare:
        """Return this process's share of a batch of `samples` samples."""
        count = self.ranks.count
        if self.is_repeated(samples):
            return BatchShare(samples * count, 1.0, seed)  # each sample counts once in every process
        return BatchShare(samples, 1 / count, seed)

    def select_own_samples(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Select the sample ids of a batch that this process computes, which are adjacent in the batch."""
        if self.is_repeated(len(ids)):
            return ids
        rank, count = self.ranks.number, self.ranks.count
        return ids[len(ids) * rank // count : len(ids) * (rank + 1) // count]


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


def digest_batch(hash_sums: Sequence[float], *, shared: bool = True) -> str:
    """Compute the digest of a batch, in hexadecimal.

    Args:
        hash_sums: results of `hash_samples` in each process.
        shared: whether each process computed different samples; false if each computed the whole batch.
    """
    total = sum(map(int, hash_sums)) if shared else int(hash_sums[0])
    return f"{total % 2**DIGEST_BITS:012x}"
