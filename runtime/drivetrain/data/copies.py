"""Finds samples that are copies of each other, and keeps copies on one side of a split.

A copy in training makes the score of its twin in validation say nothing: a network that learned noise by heart is right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from drivetrain.data import stratify
from drivetrain.data.dataset import InputRecord
from drivetrain.data.groups import Groups
from drivetrain.data.labels import list_names
from drivetrain.data.stateless_random import Ids
from drivetrain.job.data import Data

Contents = npt.NDArray[np.int64]
"""A digest of each sample, shape (N,): equal for samples with the same content."""
MARK = "copies"
"""Key of the stored preprocessing of a run whose split keeps copies together."""
MAX_MEAN_REPEATS = 20
"""Rows of a table, or short texts, that repeat more often than this on average are few kinds of samples, not copies."""
MAX_LISTED_SAMPLES = 3
"""Largest number of samples that a note lists."""
TOLERATED_SHARE = 0.01
"""Share of texts that may repeat others before the split looks after it; a score is wrong by no more than that."""
SAMPLED_ROWS = 10_000
"""Rows from which it is estimated how often the values of a column coincide."""
MAX_CHANCE_SHARE = 0.01
"""Share of the pairs of equal rows that may be explained by chance before they no longer count as copies."""


@runtime_checkable
class ComparableSplit(Protocol):
    """A split whose samples can be compared with those of another one of the same job."""

    def contents(self) -> Contents:
        """A digest of each sample; none if they are not at hand."""
        ...


def digest_contents(contents: Iterable[object]) -> Contents:
    """The digests of hashable contents, which are compared within this process only."""
    return np.fromiter(map(hash, contents), np.int64)


def digest_rows(rows: npt.NDArray[np.generic]) -> Contents:
    """The digests of the rows of an array, shape (N, ...)."""
    if not rows[:1].size:
        return np.zeros(len(rows), np.int64)
    flat = np.ascontiguousarray(rows).reshape(len(rows), -1)
    return digest_contents(flat.view(f"V{flat.itemsize * flat.shape[1]}").ravel().tolist())


def digest_table_rows(columns: Sequence[npt.NDArray[np.int64]]) -> tuple[Contents, float]:
    """The digests of the rows of a table, and the share of all pairs of rows that are equal by chance.

    The share is that of columns that have nothing to do with each other: rows of few categories often coincide.

    Args:
        columns: a number for the value of each cell, one array of shape (N,) a column.
    """
    mixed = np.zeros(len(columns[0]), np.uint64)
    chance = 1.0
    for numbers in columns:
        # The finalizer of MurmurHash3, so that neighboring numbers give unrelated digests.
        mixed = (mixed ^ (numbers.view(np.uint64) + np.uint64(1))) * np.uint64(0xFF51AFD7ED558CCD)
        mixed = (mixed ^ (mixed >> np.uint64(33))) * np.uint64(0xC4CEB9FE1A85EC53)
        mixed ^= mixed >> np.uint64(29)
        counts = np.unique(numbers[:: -(-len(numbers) // SAMPLED_ROWS)], return_counts=True)[1].astype(np.float64)
        chance *= float((counts * (counts - 1)).sum() / max(1.0, counts.sum() * (counts.sum() - 1)))
    return mixed.view(np.int64), chance


def number_contents(contents: Contents) -> Groups:
    """The number of each sample's content, shape (N,), in the order of first appearance."""
    _, first, member = np.unique(contents, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[member].astype(np.int64)


def are_coincidences(contents: Contents) -> bool:
    """Whether so few samples are equal that it does not matter where they are, such as short texts of the same words."""
    return bool(len(contents) - len(np.unique(contents)) <= TOLERATED_SHARE * len(contents))


def are_few_kinds(contents: Contents, chance: float = 0.0) -> bool:
    """Whether equal samples are more likely a few kinds of samples that occur often than copies of one sample.

    Args:
        contents: digests of the samples.
        chance: share of all pairs that are equal by chance.
    """
    sizes = np.unique(contents, return_counts=True)[1].astype(np.float64)
    equal, pairs = (sizes * (sizes - 1)).sum(), len(contents) * (len(contents) - 1)
    return bool(len(contents) > MAX_MEAN_REPEATS * len(sizes) or chance * pairs > MAX_CHANCE_SHARE * equal)


class Division:
    """A split into training and validation that keeps copies on one side, and what the user should know about it."""

    def __init__(
        self, contents: Contents, sample_noun: str, recorded: InputRecord | None, *, independent: bool = False
    ) -> None:
        """Prepare to divide samples.

        Args:
            contents: digests of the samples.
            sample_noun: the samples in messages, such as `images`.
            recorded: preprocessing of the run; one that was recorded without the mark keeps the split it had.
            independent: whether equal samples are no copies.
        """
        self.copies, self.what = number_contents(contents), sample_noun
        self.repeated = len(contents) - int(self.copies.max(initial=-1)) - 1
        before = recorded is not None and recorded.same_data and MARK not in recorded.preprocessing
        self.together = self.repeated > 0 and not before and not independent

    def divide(self, labels: npt.NDArray[np.int64], data: Data, seed: int) -> tuple[Ids, Ids]:
        """Indices for training and for validation, as `stratify.divide`, but of different contents."""
        if self.together:
            first = np.unique(self.copies, return_index=True)[1]
            training, validation = stratify.divide(labels[first], data, seed)
            if len(training) and len(validation):
                is_validation = np.isin(self.copies, validation)
                return np.flatnonzero(~is_validation).astype(np.int64), np.flatnonzero(is_validation).astype(np.int64)
            self.together = False
        return stratify.divide(labels, data, seed)

    def whole(self, members: Groups) -> Groups:
        """Groups of the user, joined where they have copies of one sample."""
        if not self.together:
            return members
        parent = list(range(int(members.max()) + 1))

        def root(group: int) -> int:
            while parent[group] != group:
                parent[group] = group = parent[parent[group]]
            return group

        first = np.unique(self.copies, return_index=True)[1]
        for one, other in zip(members.tolist(), members[first[self.copies]].tolist(), strict=True):
            parent[root(one)] = root(other)
        return np.unique([root(group) for group in members.tolist()], return_inverse=True)[1].astype(np.int64)

    def stored(self) -> dict[str, int]:
        """What the preprocessing stores, so that a resumed run has the same split; nothing without copies."""
        return {MARK: self.repeated} if self.together else {}

    def notes(self, training: Ids, validation: Ids) -> list[str]:
        """How many copies there are, and on which sides."""
        if not self.repeated:
            return []
        first = np.unique(self.copies).size
        if self.together:
            return [
                f"{self.repeated:,} of {len(self.copies):,} {self.what} are copies of others, with the same content; "
                f"copies are on the same side of the split, which divides the {first:,} different ones"
            ]
        both = int(np.isin(self.copies[validation], self.copies[training]).sum())
        return (
            [
                f"{both:,} of {len(validation):,} validation {self.what} are identical to training {self.what}, since there "
                f"are only {first:,} different ones among {len(self.copies):,}; the score says little about new ones"
            ]
            if both
            else []
        )


def note_contradictions(
    contents: Contents, labels: Sequence[str | None], title: Callable[[int], str], sample_noun: str
) -> list[str]:
    """A note on samples with the same content and different labels.

    Args:
        contents: digests of the samples.
        labels: of the samples, as written; None for one without.
        title: the name of a sample, by its index.
        sample_noun: the samples in messages, such as `images`.
    """
    members_of = number_contents(contents)
    order = np.argsort(members_of, kind="stable")
    starts = np.flatnonzero(np.diff(members_of[order], prepend=-1))
    if len(starts) == len(order):
        return []
    titles, count = [], 0
    for members in np.split(order, starts[1:]):
        written = {labels[index] for index in members.tolist()} if len(members) > 1 else set()
        names = sorted(label for label in written if label is not None)
        if len(names) > 1:
            count += 1
            titles.append(f"{title(int(members[0]))} ({list_names(names, 3)})" if count <= MAX_LISTED_SAMPLES else "")
    if not titles:
        return []
    return [
        f"{count:,} {sample_noun} occur with different labels, which no network can learn: {list_names(titles, MAX_LISTED_SAMPLES)}"
    ]


def note_shared(
    training: Contents, other: Contents, title: Callable[[int], str], name: str, among: str = "training"
) -> list[str]:
    """A note on samples of another data set that are in the training data too, which makes its score too good.

    Args:
        training: digests of the training samples.
        other: digests of the other samples.
        title: the name of one of the other samples, by its index.
        name: of the other samples, such as `validation images`.
        among: what is compared with, if it is not the training data.
    """
    both = np.flatnonzero(np.isin(other, training)).tolist()
    if not both:
        return []
    titles = list_names(
        [title(index) if number < MAX_LISTED_SAMPLES else "" for number, index in enumerate(both)], MAX_LISTED_SAMPLES
    )
    return [
        f"{len(both):,} {name} are also in the {among} data: {titles} (of {len(other):,}; the same file or the same "
        "content, so the score says little about new ones)"
    ]
