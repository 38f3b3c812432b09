"""Splits samples so that those of one group, such as a patient or a machine, are all on the same side."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from runtime.data import stateless_random
from runtime.data.stateless_random import Ids
from runtime.errors import DataError
from runtime.job.data import Data
from runtime.job.values import fold_numbers

Groups = npt.NDArray[np.int64]


def numbered(names: Sequence[str | None]) -> Groups:
    """The number of each sample's group, shape (N,); a sample without a name is a group of its own."""
    known: dict[object, int] = {}
    return np.array([known.setdefault(name or index, len(known)) for index, name in enumerate(names)], np.int64)


def least(data: Data) -> int:
    """The smallest number of groups that can be split."""
    return fold_numbers(data.fold)[1] if data.fold else 2


def divide(labels: npt.NDArray[np.int64], groups: Groups, data: Data, seed: int, key: str) -> tuple[Ids, Ids]:
    """Indices for training and for validation, both ascending: a fold if the job names one, else a fraction.

    Args:
        labels: class index of each sample, shape (N,).
        groups: the number of each sample's group, shape (N,).
        data: of the job; its `validation` is a fraction.
        seed: the run's seed.
        key: the spec key that names the file, for messages.

    Raises:
        DataError: if there are fewer groups than parts.
    """
    number, count = fold_numbers(data.fold) if data.fold else (2, 2)
    assert not isinstance(data.validation, str)
    shares = [1 / count] * count if data.fold else [1 - data.validation, data.validation]
    found = int(groups.max()) + 1
    if found < count:
        raise DataError(
            f"{key}: data.groups has {found:,} group{'s' * (found > 1)}",
            f"{count} groups or more, since each is on one side only",
            "fewer folds, more data, or another column",
        )
    held = parts(labels, groups, shares, seed) == number - 1
    return np.flatnonzero(~held).astype(np.int64), np.flatnonzero(held).astype(np.int64)


def parts(labels: npt.NDArray[np.int64], groups: Groups, shares: Sequence[float], seed: int) -> npt.NDArray[np.int64]:
    """The part of each sample, shape (N,); each part has about its share of every class, and a group at least.

    Groups are placed one by one, the largest first, where the shares of their classes are furthest from what they should
    be.
    """
    counts = np.zeros((int(groups.max()) + 1, int(labels.max()) + 1))
    np.add.at(counts, (groups, labels), 1)
    total = np.maximum(counts.sum(axis=0), 1)
    wanted, have = np.array(shares)[:, None], np.zeros((len(shares), counts.shape[1]))
    shuffled = stateless_random.generator(seed, "validation").permutation(len(counts))
    order = shuffled[np.argsort(-counts.sum(axis=1)[shuffled], kind="stable")]
    place = np.zeros(len(counts), np.int64)
    for index, group in enumerate(order.tolist()):
        off = have / total - wanted
        cost = ((off + counts[group] / total) ** 2 - off**2).sum(axis=1)
        empty = have.sum(axis=1) == 0
        if len(order) - index <= empty.sum():
            cost[~empty] = np.inf
        place[group] = cost.argmin()
        have[place[group]] += counts[group]
    return place[groups]


def note(column: str, groups: Groups, kept: Ids, held: Ids, lost: Sequence[str]) -> str:
    """How many groups are on each side, and classes that are in validation only."""
    sides = [len(np.unique(groups[rows])) for rows in (kept, held)]
    more = f"; without a training sample, since all their groups are for validation: {', '.join(lost)}" if lost else ""
    return f"groups of {column}: {sides[0]:,} for training, {sides[1]:,} for validation, none on both sides{more}"
