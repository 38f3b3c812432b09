"""Cuts each batch into a fixed number of parts, so that what is learned does not depend on the number of processes.

Dropout is drawn for each part, and BatchNorm normalizes each part by itself. A process computes one or more parts, so a
run that continues with another number of processes computes the same values, up to rounding.

A batch also has a short digest, which does not depend on the number of processes: each sample id is hashed, each process
adds up the hashes of its samples, and the sum over all processes is the digest. It changes if a sample is missing,
repeated or replaced.
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
    """Index among the parts of the batch, from 0."""
    start: int
    """Index in the batch of its first sample."""
    samples: int
    """Number of samples."""


@dataclass
class BatchParts:
    """How the batches of a run are cut, and which parts this process computes."""

    ranks: Ranks
    count: int
    """Parts per batch; at least one for each process."""
    batch_size: int
    """Samples per batch; the last batch of an epoch may have fewer."""

    def list_own_parts(self, samples: int) -> list[Part]:
        """The parts that this process computes of a batch of `samples` samples; they are adjacent in the batch.

        If the batch is too small to be cut, every process computes all of it as a single part. `all_reduce_sum` sums
        both loss and weights over the processes, so the repetition cancels out.
        """
        if self.is_whole(samples):
            return [Part(0, 0, samples)]
        ranks = self.ranks
        first, end = (self.count * rank // ranks.count for rank in (ranks.number, ranks.number + 1))
        starts = [samples * number // self.count for number in range(first, end + 1)]
        return [Part(first + i, starts[i], starts[i + 1] - starts[i]) for i in range(end - first)]

    def count_computed(self, samples: int) -> int:
        """The number of samples that all processes compute of a batch, counted once for each process that computes them."""
        return samples * self.ranks.count if self.is_whole(samples) else samples

    def is_whole(self, samples: int) -> bool:
        """Whether a batch of `samples` samples is too small to be cut, so that each process computes all of it."""
        # BatchNorm cannot normalize a single sample, so parts of one are cut only where full batches have them, too.
        min_part_samples = 2 if self.batch_size >= 2 * self.count else 1
        return samples < min_part_samples * self.count

    def select_own_samples(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Of the sample ids of a batch, those that this process computes."""
        rank_parts = self.list_own_parts(len(ids))
        return ids[rank_parts[0].start : rank_parts[-1].start + rank_parts[-1].samples]


DIGEST_BITS = 48
"""Bits of a digest; few enough for a float64 to hold it exactly."""
# The constants of SplitMix64 (Steele, Lea, Flood 2014).
_INCREMENT, _FACTOR_1, _FACTOR_2 = (np.uint64(n) for n in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


def hash_samples(ids: npt.NDArray[np.int64]) -> float:
    """The sum of the hashes of some sample ids, whatever their order; a whole number of DIGEST_BITS bits."""
    mixed = (ids.astype(np.uint64) + np.uint64(1)) * _INCREMENT
    mixed = (mixed ^ (mixed >> np.uint64(30))) * _FACTOR_1
    mixed = (mixed ^ (mixed >> np.uint64(27))) * _FACTOR_2
    return float(int((mixed ^ (mixed >> np.uint64(31))).sum(dtype=np.uint64)) % 2**DIGEST_BITS)


def digest_batch(hash_sums: Sequence[float], *, shared: bool = True) -> str:
    """The digest of a batch, in hexadecimal.

    Args:
        hash_sums: result of `hash_samples` in each process.
        shared: whether each process computed different samples; false if each computed the whole batch.
    """
    total = sum(map(int, hash_sums)) if shared else int(hash_sums[0])
    return f"{total % 2**DIGEST_BITS:012x}"
