"""A short digest of the samples of a batch, the same for any number of processes that share it.

Each sample has a number that looks random, and those of a batch are added up: in any order, so each process adds up its own
samples, and the sum over the processes is that of the batch. A sample that is missing, there twice, or another one changes it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

BITS = 48
"""Few enough for a float64."""
_GAMMA, _FIRST, _SECOND = (np.uint64(n) for n in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


def number_of(ids: npt.NDArray[np.int64]) -> float:
    """The number of some samples; a whole number of BITS bits."""
    # The finalizer of SplitMix64 (Steele, Lea, Flood 2014).
    mixed = (ids.astype(np.uint64) + np.uint64(1)) * _GAMMA
    mixed = (mixed ^ (mixed >> np.uint64(30))) * _FIRST
    mixed = (mixed ^ (mixed >> np.uint64(27))) * _SECOND
    return float(int((mixed ^ (mixed >> np.uint64(31))).sum(dtype=np.uint64)) % 2**BITS)


def digest(numbers: Sequence[float], *, shared: bool = True) -> str:
    """The digest of a batch.

    Args:
        numbers: of what each process has computed.
        shared: whether each has computed its own samples, and not all of them the whole batch.
    """
    whole = sum(map(int, numbers)) if shared else int(numbers[0])
    return f"{whole % 2**BITS:012x}"
