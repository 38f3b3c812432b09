"""Loads the data of a table job: rows of a file, preprocessed once and kept in memory."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from drivetrain.data import copies
from drivetrain.data import target_columns as targets
from drivetrain.data.copies import Contents
from drivetrain.data.dataset import Dataset, Head, InputRecord, Inputs, NewSamples, Targets, keep_unchanged
from drivetrain.data.formats import csv_dialect, table_file
from drivetrain.data.formats.csv_dialect import CsvFiles
from drivetrain.data.labels import note_similar_names
from drivetrain.data.stateless_random import Ids
from drivetrain.data.tables import features, revealing_columns
from drivetrain.data.tables.column_roles import Roles, assign_roles
from drivetrain.data.tables.date_features import DateFeatures
from drivetrain.data.tables.features import Features
from drivetrain.data.tables.table_rows import RowNames, divide_rows, find_usable, prepare_division, take_rows
from drivetrain.data.target_columns import TargetColumn
from drivetrain.errors import DataError
from drivetrain.job.tables import MlpSpec, TableClassificationJob, TableData, TableJob


@dataclass
class TableSplit:
    """Some rows of one or several files."""

    inputs: Inputs
    """Preprocessed rows of all files, concatenated."""
    rows: Ids
    """The rows of this split."""
    targets: Targets
    titles: RowNames

    def __len__(self) -> int:
        return len(self.rows)

    def gather(self, ids: Ids) -> Inputs:
        """Numbers (N, width) float32 and categories (N, columns) int32, each only if there are any."""
        rows = torch.from_numpy(self.rows[ids])
        return tuple(x.index_select(0, rows) for x in self.inputs)

    def contents(self) -> Contents:
        """A digest of each row: features as the network gets them, and targets."""
        parts = [*self.gather(np.arange(len(self))), *self.targets.values()]
        rows = [part.numpy().reshape(len(self), -1) for part in parts]
        return copies.digest_rows(np.concatenate([np.ascontiguousarray(row).view(np.uint8) for row in rows], axis=1))

    def change_arrays(self, change: Callable[[Any], Any]) -> None:
        """Replace the arrays in memory."""
        self.inputs = tuple(map(change, self.inputs))
        self.rows = change(self.rows)
        self.targets = {name: change(values) for name, values in self.targets.items()}

    def title(self, index: int) -> str:
        """The row in its file."""
        return self.titles.describe_row(int(self.rows[index]))


@dataclass(frozen=True)
class _TablePart:
    """The preprocessed rows of one file."""

    path: Path
    key: str
    inputs: Inputs
    rows: Ids
    """Rows that can be used."""
    target: TargetColumn | None
    notes: list[str]

    def split(self, rows: Ids, head: Head) -> TableSplit:
        """A split of some of the rows."""
        assert self.target is not None
        target_tensors = {"": targets.build_tensor(self.target, rows, head, self.key)}
        return TableSplit(self.inputs, rows, target_tensors, RowNames((self.path.name,), (0,)))


def load(job: TableJob, recorded: InputRecord | None = None, files: CsvFiles | None = None) -> Dataset:
    """Read and check the rows of a job; preprocessing is taken from `recorded` if given, else computed.

    Raises:
        DataError: if they cannot be used.
    """
    files = files or csv_dialect.of_job(job.data.csv.list_settings(), {}, job.data.missing)
    data, path = job.data, job.resolve(job.data.train)
    classes = isinstance(job, TableClassificationJob)
    # A job that starts from a run on other data keeps the columns of that run, which its network expects.
    earlier = features.from_json(recorded.preprocessing) if recorded and not recorded.same_data else None
    dates = earlier.dates if earlier else DateFeatures(data.dates, data.date_format, data.first_year)
    bins = job.model.bins if isinstance(job.model, MlpSpec) else 0
    table, column_roles, date_problems = _read_training_table(path, data, classes, dates, earlier, files)
    target = targets.read_targets(table, data.target, classes=classes, option="data.target", source=str(path))
    rows, notes = find_usable(table, column_roles.numeric, target, date_problems, path, "data.train", data.bad_samples)
    division = prepare_division(table, column_roles, target, rows, recorded)
    train_rows, validation_rows = divide_rows(job, target, rows, notes, table, division)

    def compute_head() -> Head:
        return targets.build_head(target, rows, train_rows, "data.train")

    head = recorded.head("", compute_head) if recorded else compute_head()
    if earlier:
        fitted, feature_notes = earlier, earlier.notes(take_rows(table, train_rows), path.name)
    else:
        # A resumed run fits too, for the same notes as at its start; the recorded features then replace the fitted ones.
        fitted, feature_notes = features.fit_features(table, column_roles, train_rows, dates, bins)
    if recorded:
        fitted = features.from_json(recorded.preprocessing)
    _check_any_feature(fitted, column_roles, path)
    data_notes = [
        *column_roles.notes(),
        *dates.notes(),
        *note_similar_names(data.target[0], head.classes),
        *revealing_columns.note_revealing(table, column_roles, target, train_rows, dates.names),
        *notes,
        *feature_notes,
    ]
    train_part = _TablePart(path, "data.train", fitted.to_tensors(table), rows, target, data_notes)
    train = train_part.split(train_rows, head)
    if isinstance(data.validation, str):
        validation, validation_notes = _read_validation(job, data.validation, classes, fitted, train, head, files)
    else:
        validation = train_part.split(validation_rows, head)
        validation_notes = fitted.notes(take_rows(table, validation_rows), "validation")
    counts = f"{len(train_rows):,} training and {len(validation):,} validation rows"
    stored = {
        "kind": "table",
        "target": list(data.target),
        "classes": classes,
        **fitted.to_json(),
        **division.to_json(),
    }
    return Dataset(
        train,
        validation,
        {"": head},
        stored,
        keep_unchanged,
        mixable=not fitted.categories,
        notes=[counts, *data_notes, *validation_notes],
    )


def _read_training_table(
    path: Path, data: TableData, classes: bool, dates: DateFeatures, earlier: Features | None, files: CsvFiles
) -> tuple[Any, Roles, dict[int, str]]:
    """Read the training file.

    Returns:
        The table, with numbers for dates; the roles of its columns; and the reasons why rows have no date, by row.
    """
    table, date_problems = dates.expand(_read_table(path, data, classes, earlier, files), path, "data.train")
    column_roles = earlier.roles() if earlier else assign_roles(table, data, str(path))
    if rewritten_categories := files.rewritten.intersection(column_roles.categorical):
        # Categories that were read as numbers are read again as text, as they will be in new files.
        table, date_problems = dates.expand(
            _read_table(path, data, classes, earlier, files, rewritten_categories), path, "data.train"
        )
    return table, column_roles, date_problems


def _read_validation(
    job: TableJob, name: str, classes: bool, fitted: Features, train: TableSplit, head: Head, files: CsvFiles
) -> tuple[TableSplit, list[str]]:
    """Read a validation file; returns its rows, and notes such as on rows that are also in the training data."""
    part = _read_part(
        job.resolve(name), "data.validation", fitted, job.data.target, classes, job.data.bad_samples, files
    )
    split = part.split(part.rows, head)
    shared = copies.note_shared(train.contents(), split.contents(), split.title, "validation rows")
    return split, [*part.notes, *shared]


def _check_any_feature(fitted: Features, column_roles: Roles, path: Path) -> None:
    """Refuse a table whose features are all constant."""
    if not fitted.names:
        raise DataError(
            f"data.train: all {len(column_roles.names)} features of {path} are constant in the training rows",
            "a feature that differs between rows",
            "add columns or rows",
        )


def read(
    paths: Sequence[Path],
    preprocessing: Mapping[str, Any],
    heads: Mapping[str, Head],
    files: CsvFiles | None = None,
    *,
    labelled: bool,
    budget: float = 1.0,
) -> NewSamples:
    """Read new rows, preprocessed exactly as the training rows were.

    Args:
        paths: files with at least the columns that the network uses.
        preprocessing: of the `Dataset` that the network was trained on.
        heads: of that dataset.
        files: how CSV files are written; gets what was found.
        labelled: whether to read targets, for an evaluation.
        budget: largest share of samples that may be unusable.

    Raises:
        DataError: if a file cannot be used, or has a label that training did not have.
    """
    files = files or csv_dialect.of_model(preprocessing, {})
    fitted, head = features.from_json(preprocessing), heads[""]
    target_columns = preprocessing["target"] if labelled else ()
    parts = [
        _read_part(path, "data", fitted, target_columns, preprocessing["classes"], budget, files) for path in paths
    ]
    starts = np.cumsum([0, *(len(part.inputs[0]) for part in parts)])
    rows = np.concatenate([part.rows + start for part, start in zip(parts, starts, strict=False)])
    inputs = tuple(
        torch.cat(tensors_of_files) for tensors_of_files in zip(*(part.inputs for part in parts), strict=True)
    )
    target_tensors: Targets = {}
    if labelled:
        target_tensors = {"": torch.cat([part.split(part.rows, head).targets[""] for part in parts])}
    titles = RowNames(tuple(path.name for path in paths), tuple(starts[:-1].tolist()))
    return NewSamples(
        TableSplit(inputs, rows, target_tensors, titles),
        keep_unchanged,
        [note for part in parts for note in part.notes],
        rows + 1 if len(paths) == 1 else None,
    )


def _read_table(
    path: Path,
    data: TableData,
    classes: bool,
    earlier: Features | None,
    files: CsvFiles,
    categories: Collection[str] = (),
) -> Any:
    """Read the columns of the training file that the job uses, or those of the earlier run that it starts from.

    `categories` are columns to read as text, in addition to those that the job names.
    """
    options = ("target", "features", "numeric", "categorical", "dates", "ignore")
    required = {name: f"data.{option}" for option in reversed(options) for name in getattr(data, option) or ()}
    text = [*_select_class_column(data.target, classes), *(data.categorical or ()), *categories]
    if data.groups:
        text.append(data.groups)
        required[data.groups] = "data.groups"
    if earlier:
        required |= dict.fromkeys(earlier.file_columns, "model.from")
        text += [category.name for category in earlier.categories]
    return table_file.read(
        path,
        "data.train",
        required=required,
        only=data.features is not None or earlier is not None,
        leave=data.ignore or (),
        text=text,
        csv=files,
    )


def _select_class_column(target: Sequence[str], classes: bool) -> Sequence[str]:
    """The target column if it holds classes, which are read as text; empty for multi-label targets and numbers."""
    return target if classes and len(target) == 1 else ()


def _read_part(
    path: Path,
    key: str,
    fitted: Features,
    target: Sequence[str],
    classes: bool,
    budget: float | None,
    files: CsvFiles,
) -> _TablePart:
    """Read a separate file, preprocessed as the training rows were; without a budget any number of rows may be dropped."""
    text = [*(category.name for category in fitted.categories), *_select_class_column(target, classes)]
    required = dict.fromkeys((*fitted.file_columns, *target), key)
    table = table_file.read(path, key, required=required, only=True, text=text, csv=files)
    table, date_problems = fitted.dates.expand(table, path, key)
    target_column = (
        targets.read_targets(table, target, classes=classes, option=key, source=str(path)) if target else None
    )
    rows, notes = find_usable(
        table, [number.name for number in fitted.numbers], target_column, date_problems, path, key, budget
    )
    return _TablePart(
        path,
        key,
        fitted.to_tensors(table),
        rows,
        target_column,
        [*notes, *fitted.notes(take_rows(table, rows), path.name)],
    )
