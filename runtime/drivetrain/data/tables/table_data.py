"""Loads the data of a table job: rows of a file, preprocessed once and kept in memory."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from drivetrain.data import copies, target_columns
from drivetrain.data.copies import Contents
from drivetrain.data.dataset import Dataset, Head, InputRecord, Inputs, NewSamples, Targets, keep_unchanged
from drivetrain.data.formats import csv_dialect
from drivetrain.data.formats.csv_dialect import CsvFiles
from drivetrain.data.labels import note_similar_names
from drivetrain.data.source import Source
from drivetrain.data.stateless_random import Ids
from drivetrain.data.tables import features, revealing_columns, table_rows
from drivetrain.data.tables.date_features import DateFeatures
from drivetrain.data.tables.features import Features
from drivetrain.data.tables.table_rows import TableRows
from drivetrain.errors import DataError
from drivetrain.job.tables import MlpSpec, TableClassificationJob, TableJob


@dataclass
class TableSplit:
    """Some rows of one or several files."""

    inputs: Inputs
    """Preprocessed rows of all files, concatenated."""
    rows: Ids
    """The rows of this split."""
    targets: Targets
    files: tuple[str, ...]
    starts: tuple[int, ...] = (0,)
    """Index of the first row of each file."""

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
        """The file, and the row in it; the first row below the header is row 1."""
        row = int(self.rows[index])
        file = bisect_right(self.starts, row) - 1
        return f"{self.files[file]} row {row - self.starts[file] + 1}"


def load(job: TableJob, recorded: InputRecord | None = None, files: CsvFiles | None = None) -> Dataset:
    """Read and check the rows of a job; preprocessing is taken from `recorded` if given, else computed.

    Raises:
        DataError: if they cannot be used.
    """
    data = job.data
    files = files or csv_dialect.of_job(data.csv.list_settings(), {}, data.missing)
    # A job that starts from a run on other data keeps the columns of that run, which its network expects.
    earlier = features.from_json(recorded.preprocessing) if recorded and not recorded.same_data else None
    dates = earlier.dates if earlier else DateFeatures(data.dates, data.date_format, data.first_year)
    source = Source.of_job(job, "train", files)
    train_rows = table_rows.read_training_rows(job, source, dates, earlier)
    target = train_rows.target
    assert target is not None
    division = table_rows.compare_rows(train_rows, recorded)
    partition = table_rows.divide_rows(job, train_rows, division)
    head = target_columns.choose_head(target, train_rows.usable, partition.training, source.key, recorded)
    fitted, feature_notes = _fit_features(job, train_rows, partition.training, dates, recorded, earlier)
    inputs = fitted.to_tensors(train_rows.table)
    train = _build_split(train_rows, inputs, partition.training, head)
    if isinstance(data.validation, str):
        validation_source = Source.of_job(job, "validation", files)
        validation, validation_notes = _read_validation(job, validation_source, fitted, train, head)
    else:
        validation = _build_split(train_rows, inputs, partition.validation, head)
        validation_notes = fitted.notes(train_rows.take(partition.validation), "validation")
    notes = [
        f"{len(train):,} training and {len(validation):,} validation rows",
        *train_rows.roles.notes(),
        *dates.notes(),
        *note_similar_names(data.target[0], head.classes),
        *revealing_columns.note_revealing(train_rows.table, train_rows.roles, target, partition.training, dates.names),
        *train_rows.notes,
        *partition.notes,
        *feature_notes,
        *validation_notes,
    ]
    stored = {"kind": "table", "target": list(data.target), "classes": isinstance(job, TableClassificationJob)}
    stored |= fitted.to_json() | division.to_json()
    return Dataset(train, validation, {"": head}, stored, keep_unchanged, mixable=not fitted.categories, notes=notes)


def _fit_features(
    job: TableJob,
    train: TableRows,
    rows: Ids,
    dates: DateFeatures,
    recorded: InputRecord | None,
    earlier: Features | None,
) -> tuple[Features, list[str]]:
    """The features as recorded, else computed from the training rows; and notes on them.

    Raises:
        DataError: if all features are constant.
    """
    if earlier:
        fitted, notes = earlier, earlier.notes(train.take(rows), train.source.path.name)
    else:
        # A resumed run fits too, for the same notes as at its start; the recorded features then replace the fitted ones.
        bins = job.model.bins if isinstance(job.model, MlpSpec) else 0
        fitted, notes = features.fit_features(train.table, train.roles, rows, dates, bins)
    if recorded:
        fitted = features.from_json(recorded.preprocessing)
    if not fitted.names:
        raise DataError(
            f"data.train: all {len(train.roles.names)} features of {train.source.path} are constant in the training rows",
            "a feature that differs between rows",
            "add columns or rows",
        )
    return fitted, notes


def _build_split(part: TableRows, inputs: Inputs, rows: Ids, head: Head) -> TableSplit:
    """A split of some rows of a file, whose preprocessed rows are `inputs`; with targets if they were read."""
    tensor = target_columns.build_tensor(part.target, rows, head, part.source.key) if part.target else None
    return TableSplit(inputs, rows, {} if tensor is None else {"": tensor}, (part.source.path.name,))


def _read_validation(
    job: TableJob, source: Source, fitted: Features, train: TableSplit, head: Head
) -> tuple[TableSplit, list[str]]:
    """Read a validation file; returns its rows, and notes such as on rows that are also in the training data."""
    part = table_rows.read_new_rows(source, fitted, job.data.target, isinstance(job, TableClassificationJob))
    split = _build_split(part, fitted.to_tensors(part.table), part.usable, head)
    shared = copies.note_shared(train.contents(), split.contents(), split.title, "validation rows")
    return split, [*part.notes, *shared]


def read(
    paths: Sequence[Path],
    preprocessing: Mapping[str, Any],
    heads: Mapping[str, Head],
    files: CsvFiles | None = None,
    *,
    labelled: bool,
    budget: float = 1.0,
) -> NewSamples:
    """Read new rows of files that have the columns that the network uses; arguments and errors as of `load_new.read`."""
    files = files or csv_dialect.of_model(preprocessing, {})
    fitted = features.from_json(preprocessing)
    splits: list[TableSplit] = []
    notes: list[str] = []
    for path in paths:
        source = Source(path, "data", files, budget, labelled)
        part = table_rows.read_new_rows(source, fitted, preprocessing["target"], preprocessing["classes"])
        splits.append(_build_split(part, fitted.to_tensors(part.table), part.usable, heads[""]))
        notes += part.notes
    split = _join_splits(splits)
    return NewSamples(split, keep_unchanged, notes, split.rows + 1 if len(paths) == 1 else None)


def _join_splits(splits: Sequence[TableSplit]) -> TableSplit:
    """Concatenate the rows of several files."""
    starts = np.cumsum([0, *(len(split.inputs[0]) for split in splits)])[:-1].tolist()
    return TableSplit(
        inputs=tuple(map(torch.cat, zip(*(split.inputs for split in splits), strict=True))),
        rows=np.concatenate([split.rows + start for split, start in zip(splits, starts, strict=True)]),
        targets={name: torch.cat([split.targets[name] for split in splits]) for name in splits[0].targets},
        files=tuple(split.files[0] for split in splits),
        starts=tuple(starts),
    )
