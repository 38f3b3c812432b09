"""Divides samples into training and validation, stratified by class. All copies of a sample are on one side, and so are
all samples of a group, such as a patient or a machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from drivetrain.data import stateless_random
from drivetrain.data.copies import Contents, number_contents
from drivetrain.data.dataset import InputRecord
from drivetrain.data.notes import list_names
from drivetrain.data.stateless_random import Ids
from drivetrain.data.target_columns import Strata
from drivetrain.errors import DataError
from drivetrain.job import Job
from drivetrain.job.data import Data
from drivetrain.job.values import parse_fold

COPIES_KEY = "copies"
"""Key in the stored preprocessing; it marks runs whose split keeps copies together."""
Groups = npt.NDArray[np.int64]
"""Number of each sample's group, from 0; shape (N,)."""


def number_groups(names: Sequence[str | None]) -> Groups:
    """Number the group of each sample, shape (N,); a sample without a name is its own group."""
    number_of: dict[object, int] = {}
    return np.array([number_of.setdefault(name or index, len(number_of)) for index, name in enumerate(names)], np.int64)


def find_root(parents: list[int], member: int) -> int:
    """Find the member that represents the set of a member, and shorten the path of parents to it."""
    while parents[member] != member:
        parents[member] = parents[parents[member]]
        member = parents[member]
    return member


def divide_by_group(labels: Ids, groups: Groups, data: Data, seed: int) -> tuple[Ids, Ids]:
    """Divide whole groups by a fold or else the fraction of `data`; return ascending training and validation indices.

    `labels` holds the class index of each sample, shape (N,).

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
            f"data.groups has {group_count:,} group{'s' * (group_count > 1)}",
            f"{part_count} groups or more, since each is on one side only",
            "fewer folds, more data, or another column",
            key="data.train",
        )
    is_validation = assign_parts(labels, groups, shares, seed) == validation_part - 1
    return np.flatnonzero(~is_validation).astype(np.int64), np.flatnonzero(is_validation).astype(np.int64)


def assign_parts(
    labels: npt.NDArray[np.int64], groups: Groups, shares: Sequence[float], seed: int
) -> npt.NDArray[np.int64]:
    """Assign whole groups to parts, so that each part gets about its share of every class, and at least one group.

    Groups are placed one by one, the largest first: each goes to the part where it brings the shares of the classes
    closest to their targets. Equally large groups come in random order. Returns the part of each sample, from 0; shape
    (N,).
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
        # The cost of a part is the increase of the squared error of its shares if it gets the group.
        error = placed_counts / class_totals - target_shares
        cost = ((error + counts[group] / class_totals) ** 2 - error**2).sum(axis=1)
        is_empty = placed_counts.sum(axis=1) == 0
        if len(largest_first) - placed <= is_empty.sum():
            cost[~is_empty] = np.inf  # each remaining group is needed for an empty part
        part_of_group[group] = cost.argmin()
        placed_counts[part_of_group[group]] += counts[group]
    return part_of_group[groups]


def divide(labels: npt.NDArray[np.int64], data: Data, seed: int) -> tuple[Ids, Ids]:
    """Divide samples with these class indices (N,) by the fold of the job or else the fraction `data.validation`;
    return the indices for training and for validation.
    """
    if data.fold:
        return split_fold(labels, *parse_fold(data.fold), seed)
    assert not isinstance(data.validation, str)
    return split_fraction(labels, data.validation, seed)


def split_fold(labels: npt.NDArray[np.int64], number: int, count: int, seed: int) -> tuple[Ids, Ids]:
    """Return ascending indices for training, all folds but one, and for validation: fold `number`, from 1.

    Each class is spread evenly over the folds. Every sample is in one fold, except the only sample of a class, which is
    always for training.
    """
    # Samples are sorted by class, in random order within a class, and dealt to the folds in turn.
    shuffled = stateless_random.make_generator(seed, "validation").permutation(len(labels))
    by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
    is_only_sample = np.bincount(labels)[labels[by_class]] == 1
    is_validation = (np.arange(len(labels)) % count == number - 1) & ~is_only_sample
    return np.sort(by_class[~is_validation]).astype(np.int64), np.sort(by_class[is_validation]).astype(np.int64)


def split_fraction(labels: npt.NDArray[np.int64], fraction: float, seed: int) -> tuple[Ids, Ids]:
    """Hold out a fraction; return the indices for training and for validation, both ascending.

    The fraction is taken from every class. A class of two or more samples has at least one sample on each side, a class
    of one sample stays in training. The result depends on the labels, the fraction and the seed only.
    """
    # Samples are sorted by class, in random order within a class; the first samples of each class are for validation.
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
    """Find the rarest label of each sample from labels (N, labels) of 0 and 1, to stratify a split; shape (N,).

    A frequent label is balanced through the rarer labels that occur with it. Samples without a label form a separate
    class, numbered as one more than the last label.
    """
    counts = labels.sum(axis=0)
    count_of_label = np.where(labels > 0, counts, np.inf)
    return np.asarray(np.where(labels.any(axis=1), count_of_label.argmin(axis=1), labels.shape[1]), np.int64)


class Division:
    """Division of samples into training and validation, with all copies of a sample on one side."""

    def __init__(
        self, contents: Contents, sample_noun: str, recorded: InputRecord | None, *, independent: bool = False
    ) -> None:
        """Prepare to divide samples with these digests; `sample_noun` names them in messages, such as `images`.

        A resumed run without COPIES_KEY in `recorded` keeps its original split. Samples that are equal by chance are
        `independent`, and need not be kept together.
        """
        self.content_numbers, self.sample_noun = number_contents(contents), sample_noun
        self.copy_count = len(contents) - int(self.content_numbers.max(initial=-1)) - 1
        ignored_copies = recorded is not None and recorded.same_data and COPIES_KEY not in recorded.preprocessing
        self.keeps_together = self.copy_count > 0 and not ignored_copies and not independent

    def divide(self, labels: npt.NDArray[np.int64], data: Data, seed: int) -> tuple[Ids, Ids]:
        """Return the indices for training and for validation, as `divide` does, with no content on both sides."""
        if self.keeps_together:
            # The first sample of each content is divided; its copies follow it.
            first_rows = np.unique(self.content_numbers, return_index=True)[1]
            training, validation = divide(labels[first_rows], data, seed)
            if len(training) and len(validation):
                is_validation = np.isin(self.content_numbers, validation)
                return np.flatnonzero(~is_validation).astype(np.int64), np.flatnonzero(is_validation).astype(np.int64)
            self.keeps_together = False
        return divide(labels, data, seed)

    def join_groups(self, members: Groups) -> Groups:
        """Join the user's groups that have copies of the same sample; return the group of each sample, shape (N,)."""
        if not self.keeps_together:
            return members
        parents = list(range(int(members.max()) + 1))
        # Each sample joins its group with the group of the first sample of the same content.
        first_rows = np.unique(self.content_numbers, return_index=True)[1]
        for group, group_of_first_copy in zip(
            members.tolist(), members[first_rows[self.content_numbers]].tolist(), strict=True
        ):
            parents[find_root(parents, group)] = find_root(parents, group_of_first_copy)
        roots = [find_root(parents, group) for group in members.tolist()]
        return np.unique(roots, return_inverse=True)[1].astype(np.int64)

    def to_json(self) -> dict[str, int]:
        """Return entries of the stored preprocessing that let a resumed run repeat the split; empty without copies."""
        return {COPIES_KEY: self.copy_count} if self.keeps_together else {}

    def describe(self, training: Ids, validation: Ids) -> list[str]:
        """Return a note on the number of copies, and whether they are on both sides."""
        if not self.copy_count:
            return []
        content_count = np.unique(self.content_numbers).size
        if self.keeps_together:
            return [
                f"{self.copy_count:,} of {len(self.content_numbers):,} {self.sample_noun} are copies of others, with the same content; "
                f"copies are on the same side of the split, which divides the {content_count:,} different ones"
            ]
        shared_count = int(np.isin(self.content_numbers[validation], self.content_numbers[training]).sum())
        return (
            [
                f"{shared_count:,} of {len(validation):,} validation {self.sample_noun} are identical to training {self.sample_noun}, since there "
                f"are only {content_count:,} different ones among {len(self.content_numbers):,}; the score says little about new ones"
            ]
            if shared_count
            else []
        )


@dataclass(frozen=True)
class Partition:
    """Indices of the samples for training and for validation, both ascending."""

    training: Ids
    validation: Ids
    notes: list[str]
    """Notes on groups and copies."""
    stored: Mapping[str, int] = field(default_factory=dict)
    """Entries of the stored preprocessing that let a resumed run repeat the partition."""
    lost_classes: Sequence[str] = ()
    """Classes without a training sample, since all their groups are for validation."""


def hold_out(job: Job, strata: Strata, division: Division) -> Partition:
    """Hold out a share of each class, or a fold.

    Raises:
        DataError: if no sample is left for validation.
    """
    training, validation = division.divide(strata.numbers, job.data, job.train.seed)
    check_validation(len(validation), len(strata.numbers), division.sample_noun)
    return Partition(training, validation, division.describe(training, validation), division.to_json())


def check_validation(count: int, total: int, noun: str) -> None:
    """Check that samples are left for validation; raises DataError if there are none."""
    if not count:
        raise DataError(
            f"{total:,} usable {noun}, too few to leave any for validation",
            f"two {noun} or more, in a classification of one class",
            f"add {noun}, or set data.validation to a path",
            key="data.train",
        )


def note_single_samples(strata: Strata, noun: str) -> list[str]:
    """Return a note on classes of one sample, which `hold_out` leaves for training; `noun` is one sample."""
    single_numbers = np.flatnonzero(np.bincount(strata.numbers)[: len(strata.classes)] == 1).tolist()
    single = [strata.classes[number] for number in single_numbers]
    return [f"classes with a single {noun}, which is used for training: {list_names(single)}"] if single else []


def hold_out_groups(
    job: Job, strata: Sequence[Strata], column: str, members: Groups, division: Division | None
) -> Partition:
    """Hold out whole groups, named by `column`; groups that share copies are already joined in `members`.

    Raises:
        DataError: if there are fewer groups than parts.
    """
    training, validation = divide_by_group(strata[0].numbers, members, job.data, job.train.seed)
    # There can be so few groups that all samples of a class are in the validation split.
    lost_classes = []
    for of_head in strata:
        lost_numbers = np.setdiff1d(of_head.numbers[validation], of_head.numbers[training])
        lost_classes += [of_head.classes[number] for number in lost_numbers.tolist() if number < len(of_head.classes)]
    lost = "; without a training sample, since all their groups are for validation: " if lost_classes else ""
    counts = [f"{len(np.unique(members[rows])):,}" for rows in (training, validation)]
    notes = [
        f"groups of {column}: {counts[0]} for training, {counts[1]} for validation, none on both sides{lost}"
        f"{', '.join(lost_classes)}"
    ]
    notes += division.describe(training, validation) if division else []
    return Partition(training, validation, notes, division.to_json() if division else {}, lost_classes)
