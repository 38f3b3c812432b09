"""Reads the data of a table job: the usable rows of a file, preprocessed once and kept in memory."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from drivetrain.data import copies, target_columns
from drivetrain.data.copies import Contents
from drivetrain.data.dataset import Dataset, Inputs, Split, Targets
from drivetrain.data.formats import column_values, table_file
from drivetrain.data.labels import note_similar_names
from drivetrain.data.partition import number_groups
from drivetrain.data.reading import Heads, Preprocessor, Reader, SampleTable
from drivetrain.data.source import Source
from drivetrain.data.stateless_random import Ids
from drivetrain.data.tables import features, revealing_columns, text_column
from drivetrain.data.tables.column_roles import Roles, assign_roles
from drivetrain.data.tables.date_features import DateFeatures
from drivetrain.data.tables.features import Features
from drivetrain.errors import DataError
from drivetrain.job.tables import TableJob

if TYPE_CHECKING:
    import pyarrow


@dataclass(kw_only=True)
class FeatureTable(SampleTable):
    """The rows of one file, before they are converted for the network."""

    noun = "rows"
    single_noun = "row"
    columns: pyarrow.Table
    """All rows, with numbers for dates."""
    roles: Roles

    def take(self, rows: Ids) -> pyarrow.Table:
        """Take the cells of some rows."""
        return self.columns.take(rows) if len(rows) < len(self.columns) else self.columns


class TableReader(Reader[FeatureTable]):
    """Reads the rows of a table job."""

    job: TableJob

    def read(self, source: Source) -> FeatureTable:
        """Read the columns of the training file that the job uses, or that the run it starts from uses."""
        data, classes = self.job.data, not self.job.PREDICTS_NUMBERS
        # A job that starts from a run on other data keeps the columns of that run, which its network expects.
        earlier = features.from_json(self.earlier) if self.earlier else None
        self.dates = earlier.dates if earlier else DateFeatures(data.dates, data.date_format)
        # A message on a missing column names the first key.
        options = ("ignore", *reversed(data.COLUMN_KEYS))
        required = {name: f"data.{option}" for option in options for name in self.job.list_columns(option)}
        text = [*_select_class_column(data.target, classes), *(data.categorical or ())]
        if data.groups:
            text.append(data.groups)
            required[data.groups] = "data.groups"
        if earlier:
            required |= dict.fromkeys(earlier.file_columns, "model.from")
            text += [category.name for category in earlier.categories]

        source.files.keeps_zeros = True

        def read(categories: Collection[str] = ()) -> tuple[pyarrow.Table, dict[int, str]]:
            columns = table_file.read(
                source.path,
                source.key,
                required=required,
                only=data.features is not None or earlier is not None,
                leave=data.ignore or (),
                text=[*text, *categories],
                csv=source.files,
            )
            return self.dates.expand(columns, source)

        columns, date_problems = read()
        roles = earlier.roles() if earlier else assign_roles(columns, data, str(source.path))
        if rewritten_categories := source.files.rewritten.intersection(roles.categorical):
            # Categories that were read as numbers are read again as text, as in new files.
            columns, date_problems = read(rewritten_categories)
        table = _check_rows(source, columns, roles, date_problems, data.target, classes)
        if table.targets[""].indices is not None:
            target_columns.list_classes(table.targets[""], table.usable, source.key)
        if data.groups and self.job.data_path("validation") is None:
            groups = column_values.texts(columns[data.groups]).take(table.usable).to_pylist()
            table = replace(table, groups=number_groups(groups), group_column=data.groups)
        return table

    def digest(self, table: FeatureTable) -> tuple[Contents, bool]:
        """Digest features and targets of each row; rows of few categories are often equal by chance."""
        columns, target, rows = table.columns, table.targets[""], table.usable
        number_columns = [column_values.numbers(columns[name])[0] for name in table.roles.numeric]
        number_columns += list(target.numbers.T)
        text_columns = [column_values.texts(columns[name]) for name in table.roles.categorical]
        classes = [] if target.indices is None else [target_columns.find_strata(target, rows).numbers]
        # Adding 0 turns -0 into 0, and the bits of a NaN are not always the same.
        bit_patterns = [np.where(np.isnan(cells), np.nan, cells + 0.0).view(np.int64)[rows] for cells in number_columns]
        category_numbers = [column_values.value_numbers(cells.take(rows)) for cells in text_columns]
        contents, equal_share = copies.digest_table_rows([*bit_patterns, *category_numbers, *classes])
        return contents, copies.are_few_kinds(contents, equal_share)

    def fit(self, table: FeatureTable, training: Ids, heads: Heads) -> tuple[FittedFeatures, list[str]]:
        """Return the recorded features, or else fit them to the training rows; also returns notes on them."""
        if self.earlier:
            fitted = features.from_json(self.earlier)
            notes = _compare(fitted, table, training, table.source.path.name)
        else:
            # A resumed run also fits, to give the same notes as at its start; the recorded features replace the fit.
            bins = getattr(self.job.model, "bins", 0)
            fitted, notes = features.fit_features(table.columns, table.roles, training, self.dates, bins)
        if self.recorded:
            fitted = features.from_json(self.recorded.preprocessing)
        if not fitted.names:
            description = (
                f"all {len(table.roles.names)} features of {table.source.path} are constant in the training rows"
            )
            raise DataError(description, "a feature that differs between rows", "add columns or rows", key="data.train")
        return FittedFeatures(fitted, self.job.data.target, not self.job.PREDICTS_NUMBERS), notes

    def note_columns(self, table: FeatureTable, training: Ids, heads: Heads) -> list[str]:
        """Return notes on the roles of columns, on similar classes, and on columns that reveal the target."""
        target, head, dates = table.targets[""], heads[""], self.dates
        name = target.names[0]
        return [
            *table.roles.notes(),
            *dates.notes(),
            *note_similar_names(name, head.classes),
            *text_column.note_digit_classes(name, {} if head.several else dict.fromkeys(head.classes, 1)),
            *revealing_columns.note_revealing(table.columns, table.roles, target, training, dates.names),
        ]

    def complete(self, dataset: Dataset, table: FeatureTable, training: Ids) -> Dataset:
        """Return the dataset; categories cannot be blended."""
        return replace(dataset, mixable=not dataset.preprocessing["categorical"])


@dataclass(frozen=True)
class FittedFeatures(Preprocessor[FeatureTable]):
    """Features with the statistics of training rows."""

    features: Features
    target: Sequence[str]
    classes: bool
    """Whether the target is a class or labels, not numbers."""

    def read(self, source: Source) -> FeatureTable:
        """Read the columns of another file that the network uses."""
        target = self.target if source.labelled else ()
        source.files.keeps_zeros = True
        required = dict.fromkeys((*self.features.file_columns, *target), source.key)
        categories = [category.name for category in self.features.categories]
        text = [*categories, *_select_class_column(target, self.classes)]
        columns = table_file.read(source.path, source.key, required=required, only=True, text=text, csv=source.files)
        columns, date_problems = self.features.dates.expand(columns, source)
        return _check_rows(source, columns, self.features.roles(), date_problems, target, self.classes)

    def build_split(
        self, tables: Sequence[FeatureTable], rows: Sequence[Ids], targets: Targets
    ) -> tuple[Split, list[str]]:
        """Convert some rows of each table for the network."""
        import torch

        converted = [self.features.to_tensors(table.take(taken)) for table, taken in zip(tables, rows, strict=True)]
        split = TableSplit(
            inputs=tuple(map(torch.cat, zip(*converted, strict=True))) if len(converted) > 1 else converted[0],
            rows=np.concatenate(rows),
            targets=targets,
            files=tuple(table.source.path.name for table in tables),
            starts=tuple(np.cumsum([0, *map(len, rows)])[:-1].tolist()),
        )
        return split, []

    def to_json(self) -> dict[str, Any]:
        """Return the features and the target as plain JSON values."""
        return {"kind": "table", "target": list(self.target), "classes": self.classes} | self.features.to_json()

    def compare(self, table: FeatureTable, rows: Ids) -> list[str]:
        """Return notes on cells of some rows that are unlike the training rows."""
        name = "validation" if table.source.key == "data.train" else table.source.path.name
        return _compare(self.features, table, rows, name)

    def note_codes(self, table: FeatureTable, *, is_new: bool) -> list[str]:
        """Return notes on numbers of usable rows that are codes."""
        return self.features.note_codes(table.columns, table.usable, table.source.name_row, is_new=is_new)


def restore(preprocessing: Mapping[str, Any]) -> FittedFeatures:
    """Restore the preprocessing of a trained model."""
    return FittedFeatures(features.from_json(preprocessing), preprocessing["target"], preprocessing["classes"])


def _compare(fitted: Features, table: FeatureTable, rows: Ids, name: str) -> list[str]:
    """Return notes on cells of some rows, named by `name`, that are unlike the training rows."""
    return fitted.notes(table.take(rows), name, lambda index: table.source.name_row(int(rows[index])))


def _select_class_column(target: Sequence[str], classes: bool) -> Sequence[str]:
    """Return the target column if it holds classes, to read it as text; empty for multi-label targets and numbers."""
    return target if classes and len(target) == 1 else ()


def _check_rows(
    source: Source,
    columns: pyarrow.Table,
    roles: Roles,
    date_problems: Mapping[int, str],
    target_names: Sequence[str],
    classes: bool,
) -> FeatureTable:
    """Find the rows that can be used: with a target and dates, without text or infinity in a numeric column.

    Raises:
        DataError: if a numeric column or a target has another type, if too many rows are dropped, or all of them.
    """
    path, targets = str(source.path), {}
    if source.labelled:
        targets[""] = target_columns.read_targets(
            columns, target_names, classes=classes, option=source.name_option("target"), source=path
        )
    reasons_by_row = [target.bad for target in targets.values()] + [date_problems]
    # A missing number is filled in later; text and infinity are not.
    for name in roles.numeric:
        column_values.check_kind(columns[name], name, source.key, path)
        numbers, is_wrong = column_values.numbers(columns[name])
        reasons_by_row.append(target_columns.find_bad_numbers(columns[name], name, numbers, is_wrong))
    reasons: dict[int, str] = {}
    for column_reasons in reasons_by_row:
        for row, reason in column_reasons.items():
            reasons[row] = f"{reasons[row]}; {reason}" if row in reasons else reason
    usable, notes = source.find_usable(reasons, len(columns), "row", source.describe_bad_row)
    return FeatureTable(
        source=source,
        usable=usable,
        targets=targets,
        notes=notes,
        row_numbers=usable + 1,
        columns=columns,
        roles=roles,
    )


@dataclass
class TableSplit:
    """Some rows of one or several files."""

    inputs: Inputs
    """Preprocessed rows of all files, concatenated."""
    rows: Ids
    """Index of each row in its file."""
    targets: Targets
    files: tuple[str, ...]
    starts: tuple[int, ...] = (0,)
    """Index of the first row of each file."""

    def __len__(self) -> int:
        return len(self.rows)

    def gather(self, ids: Ids) -> Inputs:
        """Return numbers (N, width) float32 and categories (N, columns) int32, each only if there are any."""
        import torch

        rows = torch.from_numpy(ids)
        return tuple(x.index_select(0, rows) for x in self.inputs)

    def contents(self) -> Contents:
        """Return a digest of each row: features as the network gets them, and targets."""
        values = [*self.inputs, *self.targets.values()]
        rows = [value.numpy().reshape(len(self), -1) for value in values]
        return copies.digest_rows(np.concatenate([np.ascontiguousarray(row).view(np.uint8) for row in rows], axis=1))

    def title(self, index: int) -> str:
        """Return the file, and the row in it; the first row below the header is row 1."""
        return f"{self.files[bisect_right(self.starts, index) - 1]} row {int(self.rows[index]) + 1}"
