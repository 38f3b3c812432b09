"""Orders of the training samples other than a shuffle of all of them: each a function of the epoch."""

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
    """Samples of an epoch."""

    def __call__(self, epoch: int) -> Ids:
        """The ids of the epoch's samples; shape (count,), int64."""
        ...


class Sequential:
    """All samples as they stand, in every epoch."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __call__(self, epoch: int) -> Ids:
        """The ids from 0."""
        return np.arange(self.count, dtype=np.int64)


class Weighted:
    """Samples drawn by weight, from (seed, epoch).

    Args:
        weights: one for each sample, not negative.
        count: samples of an epoch.
        replacement: whether a sample can come more than once in an epoch.
        seed: of the run.
    """

    def __init__(self, weights: Iterable[float], count: int, replacement: bool, seed: int) -> None:
        raw_weights = np.asarray(torch.as_tensor(weights).double().cpu())
        self.shares, self.count = raw_weights / raw_weights.sum(), count
        self.replacement, self.seed = replacement, seed

    def __call__(self, epoch: int) -> Ids:
        """The drawn ids."""
        random = stateless_random.make_generator(self.seed, "order", epoch)
        return random.choice(len(self.shares), self.count, self.replacement, self.shares).astype(np.int64)


class Sampled:
    """The order of a sampler of the user, which is iterated anew for each epoch.

    Before that the global generators, a generator that the sampler holds, and `set_epoch` are set by (seed, epoch). So
    the order is the same again after a resume, unless the sampler keeps a state of its own.

    Args:
        sampler: yields ids.
        size: number of samples that there are.
        seed: of the run.
        name: for messages.

    Raises:
        DataError: if the sampler has no length, or yields something else than ids.
    """

    def __init__(self, sampler: Any, size: int, seed: int, name: str) -> None:
        self.sampler, self.size, self.seed, self.name = sampler, size, seed, name
        self.known: tuple[int, Ids] | None = None
        self.count = len(self._draw(0))
        self.repeats = np.array_equal(self._draw(0), self._draw(0))
        """Whether the same epoch has the same order again."""

    def __call__(self, epoch: int) -> Ids:
        """The ids that the sampler yields."""
        if self.known is None or self.known[0] != epoch:
            ids = self._draw(epoch)
            if len(ids) != self.count:
                raise DataError(
                    f"{self.name}: its sampler yields {len(ids):,} samples in epoch {epoch + 1}, and had "
                    f"{self.count:,} in the first",
                    "epochs of one length, on which the schedule depends",
                    "yield as many in every epoch",
                )
            self.known = epoch, ids
        return self.known[1]

    def _draw(self, epoch: int) -> Ids:
        key = stateless_random.derive_key(self.seed, "order", epoch)
        stateless_random.seed_globally(key)
        if isinstance(generator := getattr(self.sampler, "generator", None), torch.Generator):
            generator.manual_seed(key)
        if inspect.ismethod(start := getattr(self.sampler, "set_epoch", None)):
            start(epoch)
        ids = np.asarray(list(self.sampler))
        if ids.ndim != 1 or ids.dtype.kind not in "iu" or not len(ids) or ids.min() < 0 or ids.max() >= self.size:
            raise DataError(
                f"{self.name}: its sampler does not yield indices of the {self.size:,} samples",
                f"whole numbers from 0 to {self.size - 1}",
                "correct the sampler; a batch_sampler is another argument of a DataLoader",
            )
        return ids.astype(np.int64)
