"""Splits samples so that those of one group, such as a patient or a machine, are all on the same side."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from drivetrain.data import stateless_random
from drivetrain.data.stateless_random import Ids
from drivetrain.errors import DataError
from drivetrain.job.data import Data
from drivetrain.job.values import fold_numbers

Groups = npt.NDArray[np.int64]


def number_groups(names: Sequence[str | None]) -> Groups:
    """The number of each sample's group, shape (N,); a sample without a name is a group of its own."""
    number_of: dict[object, int] = {}
    return np.array([number_of.setdefault(name or index, len(number_of)) for index, name in enumerate(names)], np.int64)


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
    group_count = int(groups.max()) + 1
    if group_count < count:
        raise DataError(
            f"{key}: data.groups has {group_count:,} group{'s' * (group_count > 1)}",
            f"{count} groups or more, since each is on one side only",
            "fewer folds, more data, or another column",
        )
    is_validation = parts(labels, groups, shares, seed) == number - 1
    return np.flatnonzero(~is_validation).astype(np.int64), np.flatnonzero(is_validation).astype(np.int64)


def parts(labels: npt.NDArray[np.int64], groups: Groups, shares: Sequence[float], seed: int) -> npt.NDArray[np.int64]:
    """The part of each sample, shape (N,); each part has about its share of every class, and a group at least.

    Groups are placed one by one, the largest first, where the shares of their classes are furthest from what they should
    be.
    """
    counts = np.zeros((int(groups.max()) + 1, int(labels.max()) + 1))
    np.add.at(counts, (groups, labels), 1)
    total = np.maximum(counts.sum(axis=0), 1)
    target_shares, have = np.array(shares)[:, None], np.zeros((len(shares), counts.shape[1]))
    shuffled = stateless_random.generator(seed, "validation").permutation(len(counts))
    order = shuffled[np.argsort(-counts.sum(axis=1)[shuffled], kind="stable")]
    part_of = np.zeros(len(counts), np.int64)
    for index, group in enumerate(order.tolist()):
        off = have / total - target_shares
        cost = ((off + counts[group] / total) ** 2 - off**2).sum(axis=1)
        empty = have.sum(axis=1) == 0
        if len(order) - index <= empty.sum():
            cost[~empty] = np.inf
        part_of[group] = cost.argmin()
        have[part_of[group]] += counts[group]
    return part_of[groups]


def note(column: str, groups: Groups, train_rows: Ids, validation_rows: Ids, lost_classes: Sequence[str]) -> str:
    """How many groups are on each side, and classes that are in validation only."""
    sides = [len(np.unique(groups[rows])) for rows in (train_rows, validation_rows)]
    lost_text = (
        f"; without a training sample, since all their groups are for validation: {', '.join(lost_classes)}"
        if lost_classes
        else ""
    )
    return f"groups of {column}: {sides[0]:,} for training, {sides[1]:,} for validation, none on both sides{lost_text}"
