"""Loads the data of a table job: the usable rows of a file, split, preprocessed once and kept in memory."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from drivetrain.data import copies, target_columns
from drivetrain.data.copies import Contents
from drivetrain.data.dataset import Dataset, Head, InputRecord, Inputs, NewSamples, Targets, keep_unchanged
from drivetrain.data.formats import column_values, csv_dialect, table_file
from drivetrain.data.formats.csv_dialect import CsvFiles
from drivetrain.data.labels import note_similar_names
from drivetrain.data.notes import list_names
from drivetrain.data.partition import Division, Partition, hold_out, hold_out_groups, number_groups
from drivetrain.data.source import Source
from drivetrain.data.stateless_random import Ids
from drivetrain.data.tables import features, revealing_columns, text_column
from drivetrain.data.tables.column_roles import Roles, assign_roles
from drivetrain.data.tables.date_features import DateFeatures
from drivetrain.data.tables.features import Features
from drivetrain.data.target_columns import TargetColumn
from drivetrain.errors import DataError
from drivetrain.job.tables import TableJob

if TYPE_CHECKING:
    import pyarrow


@dataclass(frozen=True)
class TableRows:
    """The rows of one file, before they are converted for the network."""

    source: Source
    table: pyarrow.Table
    """All rows, with numbers for dates."""
    roles: Roles
    target: TargetColumn | None
    usable: Ids
    """Indices of the usable rows."""
    notes: list[str]
    """Notes on the rows that cannot be used."""

    def take(self, rows: Ids) -> pyarrow.Table:
        """Take the cells of some rows."""
        return self.table.take(rows) if len(rows) < len(self.table) else self.table

    def note_codes(self, fitted: Features, *, is_new: bool = False) -> list[str]:
        """Return notes on numbers of usable rows that are codes."""
        return fitted.note_codes(self.table, self.usable, self.source.name_row, is_new=is_new)

    def compare(self, fitted: Features, rows: Ids, name: str) -> list[str]:
        """Return notes on cells of some rows that are unlike the training rows; `name` names these rows."""
        return fitted.notes(self.take(rows), name, lambda index: self.source.name_row(int(rows[index])))


def read_training_rows(job: TableJob, source: Source, dates: DateFeatures, earlier: Features | None) -> TableRows:
    """Read the columns of the training file that the job uses, or that the run it starts from uses.

    Raises:
        DataError: if they cannot be used.
    """
    data, classes = job.data, not job.PREDICTS_NUMBERS
    # A message on a missing column names the first key.
    options = ("ignore", *reversed(data.COLUMN_KEYS))
    required = {name: f"data.{option}" for option in options for name in job.list_columns(option)}
    text = [*_select_class_column(data.target, classes), *(data.categorical or ())]
    if data.groups:
        text.append(data.groups)
        required[data.groups] = "data.groups"
    if earlier:
        required |= dict.fromkeys(earlier.file_columns, "model.from")
        text += [category.name for category in earlier.categories]

    source.files.keeps_zeros = True

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
        # Categories that were read as numbers are read again as text, as in new files.
        table, date_problems = read(rewritten_categories)
    return _check_rows(source, table, roles, date_problems, data.target, classes)


def read_new_rows(source: Source, fitted: Features, target: Sequence[str], classes: bool) -> TableRows:
    """Read the columns of another file that the network uses, with notes on cells unlike the training rows.

    Raises:
        DataError: if they cannot be used.
    """
    target = target if source.labelled else ()
    source.files.keeps_zeros = True
    required = dict.fromkeys((*fitted.file_columns, *target), source.key)
    text = [*(category.name for category in fitted.categories), *_select_class_column(target, classes)]
    table = table_file.read(source.path, source.key, required=required, only=True, text=text, csv=source.files)
    table, date_problems = fitted.dates.expand(table, source)
    part = _check_rows(source, table, fitted.roles(), date_problems, target, classes)
    part.notes.extend(part.compare(fitted, part.usable, source.path.name))
    part.notes.extend(f"{source.path.name}: {note}" for note in part.note_codes(fitted, is_new=True))
    return part


def _select_class_column(target: Sequence[str], classes: bool) -> Sequence[str]:
    """Return the target column if it holds classes, to read it as text; empty for multi-label targets and numbers."""
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
        raise DataError(f"no row of {path} is usable; {unusable[0]}", "one row or more", "fix the file", key=source.key)
    is_usable = np.ones(len(table), np.bool_)
    is_usable[list(reasons)] = False
    return TableRows(source, table, roles, target, np.flatnonzero(is_usable).astype(np.int64), notes)


def compare_rows(train: TableRows, recorded: InputRecord | None) -> Division:
    """Compare the usable rows, so that copies (equal features and targets) stay on one side of a split."""
    assert train.target is not None
    table, target, rows = train.table, train.target, train.usable
    number_columns = [column_values.numbers(table[name])[0] for name in train.roles.numeric] + list(target.numbers.T)
    text_columns = [column_values.texts(table[name]) for name in train.roles.categorical]
    classes = [] if target.indices is None else [target_columns.find_strata(target, rows).numbers]
    # Adding 0 turns -0 into 0, and the bits of a NaN are not always the same.
    bit_patterns = [np.where(np.isnan(cells), np.nan, cells + 0.0).view(np.int64)[rows] for cells in number_columns]
    contents, equal_share = copies.digest_table_rows(
        [*bit_patterns, *(column_values.value_numbers(cells.take(rows)) for cells in text_columns), *classes]
    )
    return Division(contents, "rows", recorded, independent=copies.are_few_kinds(contents, equal_share))


def divide_rows(job: TableJob, train: TableRows, division: Division) -> Partition:
    """Divide the usable rows: stratified by class, at random if there are no classes, or by whole groups.

    Raises:
        DataError: if too few rows or groups are left for validation.
    """
    target, rows = train.target, train.usable
    assert target is not None
    if job.data_path("validation") is not None:
        return Partition(rows, rows[:0], [])
    if target.indices is not None:
        target_columns.list_classes(target, rows, "data.train")
    strata, notes = target_columns.find_strata(target, rows), []
    if job.data.groups:
        # Groups that share copies of a row are joined, so that neither groups nor copies are split.
        members = number_groups(column_values.texts(train.table[job.data.groups]).take(rows).to_pylist())
        partition = hold_out_groups(job, strata, job.data.groups, division.join_groups(members), division)
    else:
        partition = hold_out(job, strata, division)
        single_row_classes = np.flatnonzero(np.bincount(strata.numbers) == 1).tolist() if strata.classes else []
        if single_row_classes:
            names = list_names([strata.classes[number] for number in single_row_classes])
            notes.append(f"classes with a single row, which is used for training: {names}")
    return Partition(rows[partition.training], rows[partition.validation], [*notes, *partition.notes])


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
        """Return numbers (N, width) float32 and categories (N, columns) int32, each only if there are any."""
        import torch

        rows = torch.from_numpy(self.rows[ids])
        return tuple(x.index_select(0, rows) for x in self.inputs)

    def contents(self) -> Contents:
        """Return a digest of each row: features as the network gets them, and targets."""
        parts = [*self.gather(np.arange(len(self))), *self.targets.values()]
        rows = [part.numpy().reshape(len(self), -1) for part in parts]
        return copies.digest_rows(np.concatenate([np.ascontiguousarray(row).view(np.uint8) for row in rows], axis=1))

    def title(self, index: int) -> str:
        """Return the file, and the row in it; the first row below the header is row 1."""
        row = int(self.rows[index])
        file = bisect_right(self.starts, row) - 1
        return f"{self.files[file]} row {row - self.starts[file] + 1}"


@dataclass(frozen=True)
class TableParts:
    """Rows of a job, read and divided, with what is fitted to the training rows."""

    train: TableRows
    division: Division
    partition: Partition
    head: Head
    fitted: Features
    feature_notes: list[str]

    def notes(self) -> list[str]:
        """Return notes on the columns and on the rows of the training file."""
        train, head, target, dates = self.train, self.head, self.train.target, self.fitted.dates
        assert target is not None
        source, name, rows = train.source, target.names[0], self.partition.training
        return [
            *train.roles.notes(),
            *dates.notes(),
            *note_similar_names(name, head.classes),
            *text_column.note_digit_classes(name, {} if head.several else dict.fromkeys(head.classes, 1)),
            *revealing_columns.note_revealing(train.table, train.roles, target, rows, dates.names),
            *train.notes,
            *self.partition.notes,
            *self.feature_notes,
            *train.note_codes(self.fitted),
            *target_columns.note_codes(target, train.usable, head, source.name_row, budget=source.budget),
        ]


def _read_parts(job: TableJob, recorded: InputRecord | None, files: CsvFiles) -> TableParts:
    # A job that starts from a run on other data keeps the columns of that run, which its network expects.
    earlier = features.from_json(recorded.preprocessing) if recorded and not recorded.same_data else None
    dates = earlier.dates if earlier else DateFeatures(job.data.dates, job.data.date_format)
    train = read_training_rows(job, Source.of_job(job, "train", files), dates, earlier)
    assert train.target is not None
    division = compare_rows(train, recorded)
    partition = divide_rows(job, train, division)
    rows = partition.training
    head = target_columns.choose_head(train.target, train.usable, rows, train.source.key, recorded)
    return TableParts(train, division, partition, head, *_fit_features(job, train, rows, dates, recorded, earlier))


def check(job: TableJob, recorded: InputRecord | None, files: CsvFiles) -> tuple[int, list[str]]:
    """Read the rows of a job as `load` does, without torch; returns the number of training rows, and notes."""
    parts, classes = _read_parts(job, recorded, files), not job.PREDICTS_NUMBERS
    notes = parts.notes()
    for (_, part), _ in job.data_paths()[1:]:
        source = Source.of_job(job, part, files)
        rows = read_new_rows(source, parts.fitted, job.data.target, classes)
        assert rows.target is not None
        target_columns.encode(rows.target, rows.usable, parts.head, source.key)
        notes += rows.notes
    return len(parts.partition.training), notes


def load(job: TableJob, recorded: InputRecord | None = None, files: CsvFiles | None = None) -> Dataset:
    """Read and check the rows of a job; preprocessing is taken from `recorded` if given, else computed.

    Raises:
        DataError: if they cannot be used.
    """
    data = job.data
    files = files or csv_dialect.of_job(job.csv_settings(), {}, data.missing)
    parts = _read_parts(job, recorded, files)
    train_rows, partition, head, fitted = parts.train, parts.partition, parts.head, parts.fitted
    target = train_rows.target
    assert target is not None
    inputs = fitted.to_tensors(train_rows.table)
    train = _build_split(train_rows, inputs, partition.training, head)
    if isinstance(data.validation, str):
        sources, classes = [Source.of_job(job, "validation", files)], not job.PREDICTS_NUMBERS
        validation, validation_notes = _read_new(sources, fitted, data.target, classes, head)
        validation_notes += copies.note_shared(
            train.contents(), validation.contents(), validation.title, "validation rows"
        )
    else:
        scored, code_notes = target_columns.keep_scored(target, partition.validation, head)
        validation = _build_split(train_rows, inputs, scored, head)
        validation_notes = train_rows.compare(fitted, partition.validation, "validation") + code_notes
    notes = [
        f"{len(train):,} training and {len(validation):,} validation rows",
        *parts.notes(),
        *validation_notes,
    ]
    stored = {"kind": "table", "target": list(data.target), "classes": not job.PREDICTS_NUMBERS}
    stored |= fitted.to_json() | parts.division.to_json()
    return Dataset(train, validation, {"": head}, stored, keep_unchanged, mixable=not fitted.categories, notes=notes)


def _fit_features(
    job: TableJob,
    train: TableRows,
    rows: Ids,
    dates: DateFeatures,
    recorded: InputRecord | None,
    earlier: Features | None,
) -> tuple[Features, list[str]]:
    """Return the recorded features, or else fit them to the training rows; also return notes on them.

    Raises:
        DataError: if all features are constant.
    """
    if earlier:
        fitted, notes = earlier, train.compare(earlier, rows, train.source.path.name)
    else:
        # A resumed run also fits, to give the same notes as at its start; then the recorded features replace the fit.
        bins = getattr(job.model, "bins", 0)
        fitted, notes = features.fit_features(train.table, train.roles, rows, dates, bins)
    if recorded:
        fitted = features.from_json(recorded.preprocessing)
    if not fitted.names:
        description = f"all {len(train.roles.names)} features of {train.source.path} are constant in the training rows"
        raise DataError(description, "a feature that differs between rows", "add columns or rows", key="data.train")
    return fitted, notes


def _build_split(part: TableRows, inputs: Inputs, rows: Ids, head: Head) -> TableSplit:
    """Build a split from some rows of a file, with targets if they were read; `inputs` has all preprocessed rows."""
    tensor = target_columns.build_tensor(part.target, rows, head, part.source.key) if part.target else None
    return TableSplit(inputs, rows, {} if tensor is None else {"": tensor}, (part.source.path.name,))


def read(sources: Sequence[Source], preprocessing: Mapping[str, Any], heads: Mapping[str, Head]) -> NewSamples:
    """Read new rows of files with the columns that the network uses; raises as `load_data.load_new` does."""
    fitted, target = features.from_json(preprocessing), preprocessing["target"]
    split, notes = _read_new(sources, fitted, target, preprocessing["classes"], heads[""])
    return NewSamples(split, keep_unchanged, notes, split.rows + 1 if len(sources) == 1 else None)


def _read_new(
    sources: Sequence[Source], fitted: Features, target: Sequence[str], classes: bool, head: Head
) -> tuple[TableSplit, list[str]]:
    """Read files other than the training file; returns the rows of all files, and notes."""
    import torch

    splits, notes = list[TableSplit](), list[str]()
    for source in sources:
        part = read_new_rows(source, fitted, target, classes)
        rows = part.usable
        if part.target and source.key == "data.validation":
            rows, code_notes = target_columns.keep_scored(part.target, rows, head)
            notes += code_notes
        splits.append(_build_split(part, fitted.to_tensors(part.table), rows, head))
        notes += part.notes
        if part.target:
            codes = target_columns.note_codes(part.target, part.usable, head, source.name_row, is_new=True)
            notes += [f"{source.path.name}: {note}" for note in codes]
    starts = np.cumsum([0, *(len(split.inputs[0]) for split in splits)])[:-1].tolist()
    split = TableSplit(
        inputs=tuple(map(torch.cat, zip(*(split.inputs for split in splits), strict=True))),
        rows=np.concatenate([split.rows + start for split, start in zip(splits, starts, strict=True)]),
        targets={name: torch.cat([split.targets[name] for split in splits]) for name in splits[0].targets},
        files=tuple(split.files[0] for split in splits),
        starts=tuple(starts),
    )
    return split, notes
