"""Holds samples of the training data out for validation: stratified by class, whole groups and copies on one side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from drivetrain.data import groups
from drivetrain.data.copies import Division
from drivetrain.data.groups import Groups
from drivetrain.data.stateless_random import Ids
from drivetrain.data.target_columns import Strata
from drivetrain.errors import DataError
from drivetrain.job import Job

Source = TypeVar("Source")


@dataclass
class Parts(Generic[Source]):
    """Rows for training and for validation, with the paths or addresses that they are from."""

    train: Source
    train_rows: Ids
    validation: Source
    """`train` if validation rows are held out of the training data."""
    validation_rows: Ids

    @property
    def sources(self) -> list[Source]:
        """What is read, each once."""
        return [self.train] if self.validation is self.train else [self.train, self.validation]


@dataclass(frozen=True)
class Partition:
    """Which samples are for training and which for validation; both ascending."""

    training: Ids
    validation: Ids
    notes: list[str]
    """On groups and copies."""
    lost_classes: Sequence[str] = ()
    """Classes without a training sample, since all their groups are for validation."""


def hold_out(job: Job, strata: Strata, division: Division) -> Partition:
    """Hold out a share of each class, or a fold.

    Raises:
        DataError: if none is left for validation.
    """
    training, validation = division.divide(strata.numbers, job.data, job.train.seed)
    if not len(validation):
        raise DataError(
            f"data.train: {len(strata.numbers):,} usable {division.sample_noun}, too few to leave any for validation",
            f"two {division.sample_noun} or more, in a classification of one class",
            f"add {division.sample_noun}, or set data.validation to a path",
        )
    return Partition(training, validation, division.describe(training, validation))


def hold_out_groups(job: Job, strata: Strata, column: str, members: Groups, division: Division | None) -> Partition:
    """Hold out whole groups, named by `column`; those that share copies are joined already in `members`.

    Raises:
        DataError: if there are fewer groups than parts.
    """
    training, validation = groups.divide_by_group(strata.numbers, members, job.data, job.train.seed, "data.train")
    # Groups can be so few that all of a class are in the validation split.
    without_training = np.setdiff1d(strata.numbers[validation], strata.numbers[training])
    lost_classes = [strata.classes[number] for number in without_training.tolist()] if strata.classes else []
    notes = [groups.describe_division(column, members, training, validation, lost_classes)]
    notes += division.describe(training, validation) if division else []
    return Partition(training, validation, notes, lost_classes)
