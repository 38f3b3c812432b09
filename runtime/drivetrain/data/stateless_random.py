"""Stateless random numbers: each is a function of (seed, purpose, position).

There is no generator state to save, and the number of workers, prefetching and resuming cannot change a value. The
mixing function is SplitMix64 (Steele, Lea & Flood 2014), vectorized over samples.
"""

from __future__ import annotations

import hashlib
import random
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch

Ids = npt.NDArray[np.int64]
"""Ids of samples, from 0; shape (N,)."""


def derive_key(seed: int, *parts: int | str) -> int:
    """Hash the seed and the parts, such as a purpose and a step, to an integer of 63 bits."""
    text = "/".join(map(str, (seed, *parts)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def make_generator(seed: int, *parts: int | str) -> np.random.Generator:
    """Make a NumPy generator for random numbers of a whole batch, such as `generator(seed, "mixup", step)`."""
    return np.random.Generator(np.random.PCG64(derive_key(seed, *parts)))


def seed_globally(seed: int) -> None:
    """Seed the global generators of torch, NumPy and Python for the user's code; this package uses none of them."""
    import torch

    torch.default_generator.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


def shuffle_samples(seed: int, epoch: int, size: int) -> Ids:
    """Return the order of the samples in one epoch; shape (size,), int64."""
    return make_generator(seed, "order", epoch).permutation(size).astype(np.int64)


def count_earlier_draws(ids: Ids) -> Ids:
    """Count the earlier draws of each id in this order, shape (N,): 0 for the first draw of a sample, then 1, 2..."""
    by_id = np.argsort(ids, kind="stable")  # equal ids form runs, in drawing order
    run_starts = np.flatnonzero(np.diff(ids[by_id], prepend=-1))
    run_lengths = np.diff(run_starts, append=len(ids))
    counts = np.empty_like(ids)
    counts[by_id] = np.arange(len(ids)) - np.repeat(run_starts, run_lengths)
    return counts


def draw_uniform(seed: int, purpose: str, epoch: int, ids: Ids, count: int = 1) -> npt.NDArray[np.float64]:
    """Draw `count` numbers in [0, 1) for each sample, from (seed, purpose, epoch, sample id) only; shape (N, count)."""
    start = np.uint64(derive_key(seed, purpose, epoch))
    # Each number of a sample has its own offset.
    lanes = np.arange(count, dtype=np.uint64) * np.uint64(0xD1342543DE82EF95)
    with np.errstate(over="ignore"):
        state = start + _mix(ids.astype(np.uint64)[:, None] + np.uint64(1)) + lanes[None, :]
        bits = _mix(_mix(state) + np.uint64(0x9E3779B97F4A7C15))
    # The upper 53 bits fill the mantissa of a float64.
    return np.asarray((bits >> np.uint64(11)).astype(np.float64) * 2.0**-53)


def _mix(value: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Compute one step of SplitMix64, with its constants."""
    value = value + np.uint64(0x9E3779B97F4A7C15)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


def seed_for_device(device: torch.device, seed: int) -> None:
    """Seed all random generators that a network may use."""
    import torch

    # torch.manual_seed would also seed the generators of absent devices, and keep a stack trace for each.
    seed_globally(seed)
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(seed)
