"""Splits the rows of a table into training and validation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from runtime.data import copies, groups
from runtime.data import target_columns as targets
from runtime.data.dataset import InputRecord
from runtime.data.formats import column_values
from runtime.data.labels import listed
from runtime.data.stateless_random import Ids
from runtime.data.tables.column_roles import Roles
from runtime.data.target_columns import TargetColumn
from runtime.errors import DataError
from runtime.job.tables import TableJob

if TYPE_CHECKING:
    import pyarrow


def division(
    table: pyarrow.Table, features: Roles, goal: TargetColumn, rows: Ids, settled: InputRecord | None
) -> copies.Division:
    """Prepare to divide rows so that copies, with equal features and targets, are on one side."""
    numbers = [column_values.numbers(table[name])[0] for name in features.numeric] + list(goal.numbers.T)
    texts = [column_values.texts(table[name]) for name in features.categorical]
    texts += [] if goal.texts is None else [goal.texts]
    # Adding 0 makes one zero of the two, and the bits of a NaN are not always the same.
    bits = [np.where(np.isnan(cells), np.nan, cells + 0.0).view(np.int64)[rows] for cells in numbers]
    contents, chance = copies.table_digests(
        [*bits, *(column_values.value_numbers(cells.take(rows)) for cells in texts)]
    )
    return copies.Division(contents, "rows", settled, independent=copies.are_few_kinds(contents, chance))


def divided(
    job: TableJob, goal: TargetColumn, rows: Ids, notes: list[str], table: pyarrow.Table, division: copies.Division
) -> tuple[Ids, Ids]:
    """Rows for training and for validation: stratified by class, or at random if there are no classes; whole groups if
    the job has a column of them. What the user should know is added to `notes`.

    Raises:
        DataError: if too few rows or groups are left for validation.
    """
    if isinstance(job.data.validation, str):
        return rows, rows[:0]
    strata = np.zeros(len(rows), np.int64)
    if goal.texts is not None:
        targets.classes(goal, rows, "data.train")
        encoded = goal.texts.take(rows).combine_chunks().dictionary_encode()
        strata = encoded.indices.to_numpy().astype(np.int64)
        alone = np.flatnonzero(np.bincount(strata) == 1)
        if len(alone) and not job.data.groups:
            names = listed(encoded.dictionary.take(alone).to_pylist())
            notes.append(f"classes with a single row, which is used for training: {names}")
    if job.data.groups:
        members = groups.numbered(column_values.texts(table[job.data.groups]).take(rows).to_pylist())
        found = division.whole(members)
        kept, held = groups.divide(strata, found, job.data, job.train.seed, "data.train")
        lost = np.setdiff1d(strata[held], strata[kept])
        classes = encoded.dictionary.take(lost).to_pylist() if goal.texts is not None else []
        notes += [groups.note(job.data.groups, found, kept, held, classes), *division.notes(kept, held)]
        return rows[kept], rows[held]
    kept, held = division.divide(strata, job.data, job.train.seed)
    notes += division.notes(kept, held)
    if not len(held):
        raise DataError(
            f"data.train: {len(rows):,} usable rows, too few to leave any for validation",
            "two rows or more, in a classification of one class",
            "add rows, or set data.validation to a path",
        )
    return rows[kept], rows[held]
