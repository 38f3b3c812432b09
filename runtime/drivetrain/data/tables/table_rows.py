"""Finds the usable rows of a table, divides them into training and validation, and names them in messages."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from drivetrain.data import bad_samples, copies, groups
from drivetrain.data import target_columns as targets
from drivetrain.data.bad_samples import BadSample
from drivetrain.data.dataset import InputRecord
from drivetrain.data.formats import column_values, row_lines
from drivetrain.data.labels import list_names
from drivetrain.data.stateless_random import Ids
from drivetrain.data.tables.column_roles import Roles
from drivetrain.data.target_columns import TargetColumn
from drivetrain.errors import DataError
from drivetrain.job.tables import TableJob

if TYPE_CHECKING:
    import pyarrow


@dataclass(frozen=True)
class RowNames:
    """Names of rows from several concatenated files."""

    files: tuple[str, ...]
    starts: tuple[int, ...]
    """Index of the first row of each file."""

    def describe_row(self, row: int) -> str:
        """The file and the row in it; the first row below the header is row 1."""
        file = bisect_right(self.starts, row) - 1
        return f"{self.files[file]} row {row - self.starts[file] + 1}"


def find_usable(
    table: pyarrow.Table,
    numeric: Sequence[str],
    target: TargetColumn | None,
    other_reasons: Mapping[int, str],
    path: Path,
    key: str,
    budget: float | None,
) -> tuple[Ids, list[str]]:
    """Return the rows that can be used, and notes on the others.

    A row is dropped if it has no target, has text or infinity in a numeric column, or has a reason in `other_reasons`.

    Args:
        table: a pyarrow table.
        numeric: its numeric columns.
        target: its targets, if they are needed.
        other_reasons: the reasons why other rows cannot be used, by row.
        path: its file.
        key: the spec key that names the file, for messages.
        budget: largest share of rows that may be dropped; None if at least one must remain.

    Raises:
        DataError: if a numeric column has another type, if too many rows are dropped, or all of them.
    """
    reasons: dict[int, list[str]] = {row: [reason] for row, reason in (target.bad if target else {}).items()}
    for row, reason in other_reasons.items():
        reasons.setdefault(row, []).append(reason)
    # A missing number is filled in later; text and infinity are not.
    for name in numeric:
        column_values.check_kind(table[name], name, key, str(path))
        values, not_numbers = column_values.numbers(table[name])
        with np.errstate(invalid="ignore"):
            is_infinite = np.abs(values) > column_values.LARGEST
        for row in np.flatnonzero(not_numbers).tolist():
            reasons.setdefault(row, []).append(f"{name} is {column_values.format_cell(table[name], row)}, not a number")
        for row in np.flatnonzero(is_infinite).tolist():
            reasons.setdefault(row, []).append(f"{name} is infinite")
    unusable = [
        BadSample(f"{path.name} {row_lines.place(path, row + 1)}", "; ".join(reasons[row])) for row in sorted(reasons)
    ]
    notes = bad_samples.check(unusable, len(table), 1.0 if budget is None else budget, key)
    if len(unusable) == len(table):
        raise DataError(f"{key}: no row of {path} is usable; {unusable[0]}", "one row or more", "fix the file")
    is_usable = np.ones(len(table), np.bool_)
    is_usable[list(reasons)] = False
    return np.flatnonzero(is_usable).astype(np.int64), notes


def take_rows(table: pyarrow.Table, rows: Ids) -> object:
    """Some rows of a pyarrow table."""
    return table.take(rows) if len(rows) < len(table) else table


def prepare_division(
    table: pyarrow.Table, features: Roles, target: TargetColumn, rows: Ids, recorded: InputRecord | None
) -> copies.Division:
    """Prepare to divide rows so that copies, with equal features and targets, are on one side."""
    number_columns = [column_values.numbers(table[name])[0] for name in features.numeric] + list(target.numbers.T)
    text_columns = [column_values.texts(table[name]) for name in features.categorical]
    text_columns += [] if target.texts is None else [target.texts]
    # Adding 0 makes one zero of the two, and the bits of a NaN are not always the same.
    bit_patterns = [np.where(np.isnan(cells), np.nan, cells + 0.0).view(np.int64)[rows] for cells in number_columns]
    contents, equal_share = copies.digest_table_rows(
        [*bit_patterns, *(column_values.value_numbers(cells.take(rows)) for cells in text_columns)]
    )
    return copies.Division(contents, "rows", recorded, independent=copies.are_few_kinds(contents, equal_share))


def divide_rows(
    job: TableJob,
    target: TargetColumn,
    rows: Ids,
    notes: list[str],
    table: pyarrow.Table,
    division: copies.Division,
) -> tuple[Ids, Ids]:
    """Divide rows into those for training and those for validation, and append to `notes` what the user should know.

    The split is stratified by class, or random if there are no classes; with a column of groups each group is on one side.

    Raises:
        DataError: if too few rows or groups are left for validation.
    """
    if isinstance(job.data.validation, str):
        return rows, rows[:0]
    # Without classes all rows are one stratum.
    strata = np.zeros(len(rows), np.int64)
    if target.texts is not None:
        targets.list_classes(target, rows, "data.train")
        encoded = target.texts.take(rows).combine_chunks().dictionary_encode()
        strata = encoded.indices.to_numpy().astype(np.int64)
        single_row_classes = np.flatnonzero(np.bincount(strata) == 1)
        if len(single_row_classes) and not job.data.groups:
            names = list_names(encoded.dictionary.take(single_row_classes).to_pylist())
            notes.append(f"classes with a single row, which is used for training: {names}")
    if job.data.groups:
        # Groups that have copies of one row are joined, so that neither a group nor copies are divided.
        members = groups.number_groups(column_values.texts(table[job.data.groups]).take(rows).to_pylist())
        group_numbers = division.join_groups(members)
        train_rows, validation_rows = groups.divide_by_group(
            strata, group_numbers, job.data, job.train.seed, "data.train"
        )
        # Groups can be so few that all of a class are in the validation split.
        without_training = np.setdiff1d(strata[validation_rows], strata[train_rows])
        classes = encoded.dictionary.take(without_training).to_pylist() if target.texts is not None else []
        notes += [
            groups.describe_division(job.data.groups, group_numbers, train_rows, validation_rows, classes),
            *division.describe(train_rows, validation_rows),
        ]
        return rows[train_rows], rows[validation_rows]
    train_rows, validation_rows = division.divide(strata, job.data, job.train.seed)
    notes += division.describe(train_rows, validation_rows)
    if not len(validation_rows):
        raise DataError(
            f"data.train: {len(rows):,} usable rows, too few to leave any for validation",
            "two rows or more, in a classification of one class",
            "add rows, or set data.validation to a path",
        )
    return rows[train_rows], rows[validation_rows]
