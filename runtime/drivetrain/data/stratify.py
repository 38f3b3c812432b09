"""Splits samples into training and validation, stratified by class."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from drivetrain.data import stateless_random
from drivetrain.data.stateless_random import Ids
from drivetrain.job.data import Data
from drivetrain.job.values import parse_fold


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
