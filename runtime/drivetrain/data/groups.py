"""Divides samples into training and validation: stratified by class, or so that those of one group, such as a patient or a
machine, are all on the same side.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from drivetrain.data import stateless_random
from drivetrain.data.stateless_random import Ids
from drivetrain.errors import DataError
from drivetrain.job.data import Data
from drivetrain.job.values import parse_fold

Groups = npt.NDArray[np.int64]
"""The number of each sample's group, from 0; shape (N,)."""


def number_groups(names: Sequence[str | None]) -> Groups:
    """The number of each sample's group, shape (N,); a sample without a name is a group of its own."""
    number_of: dict[object, int] = {}
    return np.array([number_of.setdefault(name or index, len(number_of)) for index, name in enumerate(names)], np.int64)


def find_root(parents: list[int], member: int) -> int:
    """Find the member that represents the set of another one, and shorten the path of parents to it."""
    while parents[member] != member:
        parents[member] = parents[parents[member]]
        member = parents[member]
    return member


def divide_by_group(labels: npt.NDArray[np.int64], groups: Groups, data: Data, seed: int, key: str) -> tuple[Ids, Ids]:
    """Indices for training and for validation, both ascending: a fold if the job names one, else the fraction of `data`.

    `labels` are the class index of each sample, shape (N,); `key` is the spec key that names the file, for messages.

    Raises:
        DataError: if there are fewer groups than parts.
    """
    # Parts are numbered from 1. Without folds there are two: training is part 1, validation part 2.
    validation_part, part_count = parse_fold(data.fold) if data.fold else (2, 2)
    assert not isinstance(data.validation, str)
    shares = [1 / part_count] * part_count if data.fold else [1 - data.validation, data.validation]
    group_count = int(groups.max()) + 1
    if group_count < part_count:
        raise DataError(
            f"{key}: data.groups has {group_count:,} group{'s' * (group_count > 1)}",
            f"{part_count} groups or more, since each is on one side only",
            "fewer folds, more data, or another column",
        )
    is_validation = assign_parts(labels, groups, shares, seed) == validation_part - 1
    return np.flatnonzero(~is_validation).astype(np.int64), np.flatnonzero(is_validation).astype(np.int64)


def assign_parts(
    labels: npt.NDArray[np.int64], groups: Groups, shares: Sequence[float], seed: int
) -> npt.NDArray[np.int64]:
    """Assign whole groups to parts, so that each part gets about its share of every class, and at least one group.

    Groups are placed one by one, the largest first: each goes to the part where it brings the shares of the classes
    closest to what they should be. Equally large groups come in a random order. Returns the part of each sample, from 0;
    shape (N,).
    """
    counts = np.zeros((int(groups.max()) + 1, int(labels.max()) + 1))  # of samples, by group and class
    np.add.at(counts, (groups, labels), 1)
    class_totals = np.maximum(counts.sum(axis=0), 1)
    target_shares = np.array(shares)[:, None]
    placed_counts = np.zeros((len(shares), counts.shape[1]))  # of samples, by part and class
    shuffled = stateless_random.make_generator(seed, "validation").permutation(len(counts))
    largest_first = shuffled[np.argsort(-counts.sum(axis=1)[shuffled], kind="stable")]
    part_of_group = np.zeros(len(counts), np.int64)
    for placed, group in enumerate(largest_first.tolist()):
        # The cost of a part is by how much the group would raise the squared error of its shares.
        error = placed_counts / class_totals - target_shares
        cost = ((error + counts[group] / class_totals) ** 2 - error**2).sum(axis=1)
        is_empty = placed_counts.sum(axis=1) == 0
        if len(largest_first) - placed <= is_empty.sum():
            cost[~is_empty] = np.inf  # each remaining group is needed for an empty part
        part_of_group[group] = cost.argmin()
        placed_counts[part_of_group[group]] += counts[group]
    return part_of_group[groups]


def describe_division(
    column: str, groups: Groups, train_rows: Ids, validation_rows: Ids, lost_classes: Sequence[str]
) -> str:
    """A note on how many groups are on each side of the split, and on classes that are in validation only."""
    group_counts = [len(np.unique(groups[rows])) for rows in (train_rows, validation_rows)]
    lost_text = (
        f"; without a training sample, since all their groups are for validation: {', '.join(lost_classes)}"
        if lost_classes
        else ""
    )
    return f"groups of {column}: {group_counts[0]:,} for training, {group_counts[1]:,} for validation, none on both sides{lost_text}"


def divide(labels: npt.NDArray[np.int64], data: Data, seed: int) -> tuple[Ids, Ids]:
    """Indices for training and for validation of samples with these class indices (N,): a fold if the job names one, else
    the fraction of `data.validation`.
    """
    if data.fold:
        return split_fold(labels, *parse_fold(data.fold), seed)
    assert not isinstance(data.validation, str)
    return hold_out(labels, data.validation, seed)


def split_fold(labels: npt.NDArray[np.int64], number: int, count: int, seed: int) -> tuple[Ids, Ids]:
    """Indices for training and for validation, both ascending: all folds but one, and that one, counted from 1.

    Each class is spread evenly over the folds. Every sample is in one fold, except that of a class with one sample,
    which is always for training.
    """
    # Samples are sorted by class, in random order within it, and dealt to the folds in turn.
    shuffled = stateless_random.make_generator(seed, "validation").permutation(len(labels))
    by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
    is_only_sample = np.bincount(labels)[labels[by_class]] == 1
    is_validation = (np.arange(len(labels)) % count == number - 1) & ~is_only_sample
    return np.sort(by_class[~is_validation]).astype(np.int64), np.sort(by_class[is_validation]).astype(np.int64)


def hold_out(labels: npt.NDArray[np.int64], fraction: float, seed: int) -> tuple[Ids, Ids]:
    """Indices for training and for validation, both ascending.

    The fraction is taken from every class. A class of two or more samples has at least one on each side, a class of one
    sample stays in training. The result depends on the labels, the fraction and the seed only.
    """
    # Samples are sorted by class, in random order within it; the first ones of each class are for validation.
    shuffled = stateless_random.make_generator(seed, "validation").permutation(len(labels))
    by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
    sizes = np.bincount(labels)
    validation_counts = np.clip(
        np.rint(sizes * fraction).astype(np.int64), np.minimum(1, sizes // 2), np.maximum(sizes - 1, 0)
    )
    position_in_class = np.arange(len(labels)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    is_validation = position_in_class < np.repeat(validation_counts, sizes)
    return np.sort(by_class[~is_validation]).astype(np.int64), np.sort(by_class[is_validation]).astype(np.int64)


def find_rarest_labels(labels: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """The rarest of the labels (N, labels) of each sample, 0 or 1, by which a split is stratified; shape (N,).

    A frequent label is balanced through the rarer ones that occur with it. Samples without a label form a class of their
    own, numbered as one more than the last label.
    """
    counts = labels.sum(axis=0)
    count_of_label = np.where(labels > 0, counts, np.inf)
    return np.asarray(np.where(labels.any(axis=1), count_of_label.argmin(axis=1), labels.shape[1]), np.int64)
