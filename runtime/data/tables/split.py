"""Splits the rows of a table into training and validation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from runtime.data import groups, stratify
from runtime.data import target_columns as targets
from runtime.data.formats import column_values
from runtime.data.labels import listed
from runtime.data.stateless_random import Ids
from runtime.data.target_columns import TargetColumn
from runtime.errors import DataError
from runtime.job.tables import TableJob

if TYPE_CHECKING:
    import pyarrow


def divided(job: TableJob, goal: TargetColumn, rows: Ids, notes: list[str], table: pyarrow.Table) -> tuple[Ids, Ids]:
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
        found = groups.numbered(column_values.texts(table[job.data.groups]).take(rows).to_pylist())
        kept, held = groups.divide(strata, found, job.data, job.train.seed, "data.train")
        lost = np.setdiff1d(strata[held], strata[kept])
        classes = encoded.dictionary.take(lost).to_pylist() if goal.texts is not None else []
        notes.append(groups.note(job.data.groups, found, kept, held, classes))
        return rows[kept], rows[held]
    kept, held = stratify.divide(strata, job.data, job.train.seed)
    if not len(held):
        raise DataError(
            f"data.train: {len(rows):,} usable rows, too few to leave any for validation",
            "two rows or more, in a classification of one class",
            "add rows, or set data.validation to a path",
        )
    return rows[kept], rows[held]
