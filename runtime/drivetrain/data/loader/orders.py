"""Orders of the training samples, other than a shuffle of all of them; each is a function of the epoch."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
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

    Args:
        size: number of samples that there are.

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
