"""Finds samples that are copies of each other; `drivetrain.data.partition` keeps copies on one side of a split.

If one copy is in training and the other in validation, the score of the second is meaningless: a network that only
memorizes its samples predicts it correctly.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from drivetrain.data.notes import list_names
from drivetrain.data.stateless_random import Ids

Contents = npt.NDArray[np.int64]
"""Digest of each sample, shape (N,): equal for samples with the same content."""
MAX_MEAN_REPEATS = 20
"""Largest mean number of equal samples that count as copies; if more are equal, as short texts are, they are frequent kinds."""
MAX_LISTED_SAMPLES = 3
"""Largest number of samples that a note lists."""
TOLERATED_SHARE = 0.01
"""Largest share of repeated texts that does not affect the split; the error of the score is at most this share."""
SAMPLED_ROWS = 10_000
"""Largest number of rows used to estimate how often the values of a column coincide."""
MAX_CHANCE_SHARE = 0.01
"""Largest share of the pairs of equal rows that chance may explain if equal rows count as copies."""


@runtime_checkable
class ComparableSplit(Protocol):
    """Split whose samples can be compared with the samples of another split of the same job."""

    def contents(self) -> Contents:
        """Return a digest of each sample; empty if the samples are not in memory."""
        ...


def digest_contents(contents: Iterable[object]) -> Contents:
    """Hash contents; the digests can be compared within this process only."""
    return np.fromiter(map(hash, contents), np.int64)


def digest_rows(rows: npt.NDArray[np.generic]) -> Contents:
    """Hash the rows of an array of shape (N, ...)."""
    if not rows[:1].size:
        return np.zeros(len(rows), np.int64)
    flat = np.ascontiguousarray(rows).reshape(len(rows), -1)
    return digest_contents(flat.view(f"V{flat.itemsize * flat.shape[1]}").ravel().tolist())


def digest_table_rows(columns: Sequence[npt.NDArray[np.int64]]) -> tuple[Contents, float]:
    """Hash the rows of a table, and estimate the share of all pairs of rows that are equal by chance.

    In each column, of shape (N,), equal numbers stand for equal cells. The estimate assumes that columns are
    independent: rows of few categories often coincide.
    """
    hashes = np.zeros(len(columns[0]), np.uint64)
    equal_share = 1.0
    for column in columns:
        # The finalizer of MurmurHash3, so that neighboring numbers give unrelated digests.
        hashes = (hashes ^ (column.view(np.uint64) + np.uint64(1))) * np.uint64(0xFF51AFD7ED558CCD)
        hashes = (hashes ^ (hashes >> np.uint64(33))) * np.uint64(0xC4CEB9FE1A85EC53)
        hashes ^= hashes >> np.uint64(29)
        counts = np.unique(column[:: -(-len(column) // SAMPLED_ROWS)], return_counts=True)[1].astype(np.float64)
        equal_share *= float((counts * (counts - 1)).sum() / max(1.0, counts.sum() * (counts.sum() - 1)))
    return hashes.view(np.int64), equal_share


def number_contents(contents: Contents) -> Ids:
    """Number the contents from 0 in the order of their first samples; return the number of each sample, shape (N,)."""
    _, first_rows, content_of_sample = np.unique(contents, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first_rows))[content_of_sample].astype(np.int64)


def are_coincidences(contents: Contents) -> bool:
    """Return whether so few samples repeat others that their side of the split does not matter."""
    return bool(len(contents) - len(np.unique(contents)) <= TOLERATED_SHARE * len(contents))


def are_few_kinds(contents: Contents, chance: float = 0.0) -> bool:
    """Return whether equal samples are more likely a few frequent kinds of samples than copies of one sample.

    `chance` is the share of all pairs that are equal by chance.
    """
    sizes = np.unique(contents, return_counts=True)[1].astype(np.float64)
    equal_pairs, all_pairs = (sizes * (sizes - 1)).sum(), len(contents) * (len(contents) - 1)
    return bool(len(contents) > MAX_MEAN_REPEATS * len(sizes) or chance * all_pairs > MAX_CHANCE_SHARE * equal_pairs)


def note_contradictions(
    contents: Contents, labels: Sequence[str | None], title: Callable[[int], str], sample_noun: str
) -> list[str]:
    """Return a note on samples with equal content and different labels, as written; `sample_noun`: such as `images`."""
    content_numbers = number_contents(contents)
    copies = np.flatnonzero(np.bincount(content_numbers)[content_numbers] > 1).tolist()
    first_rows, labels_by_content = dict[int, int](), defaultdict[int, set[str]](set)
    for row, content in zip(copies, content_numbers[copies].tolist(), strict=True):
        first_rows.setdefault(content, row)
        label = labels[row]
        if label is not None:
            labels_by_content[content].add(label)
    contradictions = []
    for content, names in sorted(labels_by_content.items()):
        if len(names) > 1:
            contradictions.append((first_rows[content], sorted(names)))
    if not contradictions:
        return []
    titles = [f"{title(row)} ({list_names(names, 3)})" for row, names in contradictions[:MAX_LISTED_SAMPLES]]
    titles += [""] * (len(contradictions) - len(titles))
    return [
        f"{len(contradictions):,} {sample_noun} occur with different labels, which no network can learn: {list_names(titles, MAX_LISTED_SAMPLES)}"
    ]


def note_shared(
    training: Contents, other: Contents, title: Callable[[int], str], name: str, among: str = "training"
) -> list[str]:
    """Return a note on samples of another data set that are also in the training data, which makes scores too good.

    `title` names one of the other samples; `name` names all of them, such as `validation images`; `among` is the data
    that they are compared with, if it is not the training data.
    """
    shared_rows = np.flatnonzero(np.isin(other, training)).tolist()
    if not shared_rows:
        return []
    listed_titles = list_names(
        [title(index) if number < MAX_LISTED_SAMPLES else "" for number, index in enumerate(shared_rows)],
        MAX_LISTED_SAMPLES,
    )
    return [
        f"{len(shared_rows):,} {name} are also in the {among} data: {listed_titles} (of {len(other):,}; the same file or the same "
        "content, so the score says little about new ones)"
    ]
