"""Reads the rows of a table file that can be used, and divides those for training from those for validation."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from drivetrain.data import copies, groups, target_columns
from drivetrain.data.copies import Division
from drivetrain.data.dataset import InputRecord
from drivetrain.data.formats import column_values, table_file
from drivetrain.data.labels import list_names
from drivetrain.data.partition import Partition, hold_out, hold_out_groups
from drivetrain.data.source import Source
from drivetrain.data.stateless_random import Ids
from drivetrain.data.tables.column_roles import Roles, assign_roles
from drivetrain.data.tables.date_features import DateFeatures
from drivetrain.data.tables.features import Features
from drivetrain.data.target_columns import TargetColumn
from drivetrain.errors import DataError
from drivetrain.job.tables import TableClassificationJob, TableJob

if TYPE_CHECKING:
    import pyarrow

_OPTIONS = ("ignore", "dates", "categorical", "numeric", "features", "target")
"""Keys of `data:` that name columns; a message on a missing column names the last of them."""


@dataclass(frozen=True)
class TableRows:
    """The rows of one file, before they are converted for the network."""

    source: Source
    table: pyarrow.Table
    """All rows, with numbers for dates."""
    roles: Roles
    target: TargetColumn | None
    usable: Ids
    """The rows that can be used."""
    notes: list[str]
    """On the rows that cannot be used."""

    def take(self, rows: Ids) -> pyarrow.Table:
        """The cells of some rows."""
        return self.table.take(rows) if len(rows) < len(self.table) else self.table


def read_training_rows(job: TableJob, source: Source, dates: DateFeatures, earlier: Features | None) -> TableRows:
    """Read the columns of the training file that the job uses, or those of the earlier run that it starts from.

    Raises:
        DataError: if they cannot be used.
    """
    data, classes = job.data, isinstance(job, TableClassificationJob)
    required = {name: f"data.{option}" for option in _OPTIONS for name in getattr(data, option) or ()}
    text = [*_select_class_column(data.target, classes), *(data.categorical or ())]
    if data.groups:
        text.append(data.groups)
        required[data.groups] = "data.groups"
    if earlier:
        required |= dict.fromkeys(earlier.file_columns, "model.from")
        text += [category.name for category in earlier.categories]

    def read(categories: Collection[str] = ()) -> tuple[pyarrow.Table, dict[int, str]]:
        table = table_file.read(
            source.path,
            source.key,
            required=required,
            only=data.features is not None or earlier is not None,
            leave=data.ignore or (),
            text=[*text, *categories],
            csv=source.files,
        )
        return dates.expand(table, source)

    table, date_problems = read()
    roles = earlier.roles() if earlier else assign_roles(table, data, str(source.path))
    if rewritten_categories := source.files.rewritten.intersection(roles.categorical):
        # Categories that were read as numbers are read again as text, as they will be in new files.
        table, date_problems = read(rewritten_categories)
    return _check_rows(source, table, roles, date_problems, data.target, classes)


def read_new_rows(source: Source, fitted: Features, target: Sequence[str], classes: bool) -> TableRows:
    """Read the columns of another file that the network uses, with notes on cells that training did not have.

    Raises:
        DataError: if they cannot be used.
    """
    target = target if source.labelled else ()
    required = dict.fromkeys((*fitted.file_columns, *target), source.key)
    text = [*(category.name for category in fitted.categories), *_select_class_column(target, classes)]
    table = table_file.read(source.path, source.key, required=required, only=True, text=text, csv=source.files)
    table, date_problems = fitted.dates.expand(table, source)
    part = _check_rows(source, table, fitted.roles(), date_problems, target, classes)
    part.notes.extend(fitted.notes(part.take(part.usable), source.path.name))
    return part


def _select_class_column(target: Sequence[str], classes: bool) -> Sequence[str]:
    """The target column if it holds classes, which are read as text; empty for multi-label targets and numbers."""
    return target if classes and len(target) == 1 else ()


def _check_rows(
    source: Source,
    table: pyarrow.Table,
    roles: Roles,
    date_problems: Mapping[int, str],
    target_names: Sequence[str],
    classes: bool,
) -> TableRows:
    """Find the rows that can be used: with a target and dates, without text or infinity in a numeric column.

    Raises:
        DataError: if a numeric column or a target has another type, if too many rows are dropped, or all of them.
    """
    path = source.path
    target = (
        target_columns.read_targets(
            table, target_names, classes=classes, option=source.name_option("target"), source=str(path)
        )
        if source.labelled
        else None
    )
    reasons: dict[int, list[str]] = {row: [reason] for row, reason in (target.bad if target else {}).items()}
    for row, reason in date_problems.items():
        reasons.setdefault(row, []).append(reason)
    # A missing number is filled in later; text and infinity are not.
    for name in roles.numeric:
        column_values.check_kind(table[name], name, source.key, str(path))
        bad_numbers = target_columns.find_bad_numbers(table[name], name, *column_values.numbers(table[name]))
        for row, reason in bad_numbers.items():
            reasons.setdefault(row, []).append(reason)
    unusable = [source.describe_bad_row(row, "; ".join(reasons[row])) for row in sorted(reasons)]
    notes = source.check_bad(unusable, len(table))
    if len(unusable) == len(table):
        raise DataError(f"{source.key}: no row of {path} is usable; {unusable[0]}", "one row or more", "fix the file")
    is_usable = np.ones(len(table), np.bool_)
    is_usable[list(reasons)] = False
    return TableRows(source, table, roles, target, np.flatnonzero(is_usable).astype(np.int64), notes)


def compare_rows(train: TableRows, recorded: InputRecord | None) -> Division:
    """Compare the usable rows, so that copies, with equal features and targets, are on one side of a split."""
    assert train.target is not None
    table, target, rows = train.table, train.target, train.usable
    number_columns = [column_values.numbers(table[name])[0] for name in train.roles.numeric] + list(target.numbers.T)
    text_columns = [column_values.texts(table[name]) for name in train.roles.categorical]
    text_columns += [] if target.texts is None else [target.texts]
    # Adding 0 makes one zero of the two, and the bits of a NaN are not always the same.
    bit_patterns = [np.where(np.isnan(cells), np.nan, cells + 0.0).view(np.int64)[rows] for cells in number_columns]
    contents, equal_share = copies.digest_table_rows(
        [*bit_patterns, *(column_values.value_numbers(cells.take(rows)) for cells in text_columns)]
    )
    return Division(contents, "rows", recorded, independent=copies.are_few_kinds(contents, equal_share))


def divide_rows(job: TableJob, train: TableRows, division: Division) -> Partition:
    """Divide the usable rows: stratified by class, at random if there are no classes, or by whole groups.

    Raises:
        DataError: if too few rows or groups are left for validation.
    """
    target, rows = train.target, train.usable
    assert target is not None
    if isinstance(job.data.validation, str):
        return Partition(rows, rows[:0], [])
    if target.texts is not None:
        target_columns.list_classes(target, rows, "data.train")
    strata, notes = target_columns.find_strata(target, rows), []
    if job.data.groups:
        # Groups that have copies of one row are joined, so that neither a group nor copies are divided.
        members = groups.number_groups(column_values.texts(train.table[job.data.groups]).take(rows).to_pylist())
        partition = hold_out_groups(job, strata, job.data.groups, division.join_groups(members), division)
    else:
        partition = hold_out(job, strata, division)
        single_row_classes = np.flatnonzero(np.bincount(strata.numbers) == 1).tolist() if strata.classes else []
        if single_row_classes:
            names = list_names([strata.classes[number] for number in single_row_classes])
            notes.append(f"classes with a single row, which is used for training: {names}")
    return Partition(rows[partition.training], rows[partition.validation], [*notes, *partition.notes])
