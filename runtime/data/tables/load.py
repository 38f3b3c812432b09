"""Loads the data of a table job: rows of a file, preprocessed once and kept in memory."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from runtime.data import copies
from runtime.data import target_columns as targets
from runtime.data.copies import Contents
from runtime.data.dataset import Dataset, Head, InputRecord, Inputs, NewSamples, Targets, as_it_is
from runtime.data.formats import csv_dialect, table_file
from runtime.data.formats.csv_dialect import CsvFiles
from runtime.data.labels import alike
from runtime.data.stateless_random import Ids
from runtime.data.tables import features, revealing_columns, split
from runtime.data.tables.column_roles import Roles, roles
from runtime.data.tables.date_features import DateFeatures
from runtime.data.tables.features import Features
from runtime.data.tables.usable_rows import RowNames, taken, usable
from runtime.data.target_columns import TargetColumn
from runtime.errors import DataError
from runtime.job.tables import TableClassificationJob, TableData, TableJob


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
        return copies.row_digests(np.concatenate([np.ascontiguousarray(row).view(np.uint8) for row in rows], axis=1))

    def change_arrays(self, change: Callable[[Any], Any]) -> None:
        """Replace the arrays in memory."""
        self.inputs = tuple(map(change, self.inputs))
        self.rows = change(self.rows)
        self.targets = {name: change(values) for name, values in self.targets.items()}

    def title(self, index: int) -> str:
        """The row in its file."""
        return self.titles.row(int(self.rows[index]))


@dataclass(frozen=True)
class _TablePart:
    """The preprocessed rows of one file."""

    path: Path
    key: str
    inputs: Inputs
    rows: Ids
    """Rows that can be used."""
    goal: TargetColumn | None
    notes: list[str]

    def split(self, rows: Ids, head: Head) -> TableSplit:
        """A split of some of the rows."""
        assert self.goal is not None
        made = {"": targets.tensor(self.goal, rows, head, self.key)}
        return TableSplit(self.inputs, rows, made, RowNames((self.path.name,), (0,)))


def load(job: TableJob, settled: InputRecord | None = None, files: CsvFiles | None = None) -> Dataset:
    """Read and check the rows of a job; preprocessing is taken from `settled` if given, else computed.

    Raises:
        DataError: if they cannot be used.
    """
    files = files or csv_dialect.of_job(job.data.csv.declared(), {}, job.data.missing)
    data, path = job.data, job.resolve(job.data.train)
    classes = isinstance(job, TableClassificationJob)
    earlier = features.from_json(settled.preprocessing) if settled and not settled.same_data else None
    dates = earlier.dates if earlier else DateFeatures(data.dates, data.date_format, data.first_year)
    table, odd = dates.expand(_table(path, data, classes, earlier, files), path, "data.train")
    found = earlier.roles() if earlier else roles(table, data, str(path))
    if changed := files.rewritten.intersection(found.categorical):
        # New files, too, are read with the categories as written.
        table, odd = dates.expand(_table(path, data, classes, earlier, files, changed), path, "data.train")
    goal = targets.read(table, data.target, classes=classes, option="data.target", source=str(path))
    rows, notes = usable(table, found.numeric, goal, odd, path, "data.train", data.bad_samples)
    division = split.division(table, found, goal, rows, settled)
    kept, held = split.divided(job, goal, rows, notes, table, division)

    def computed() -> Head:
        return targets.head(goal, rows, kept, "data.train")

    head = settled.head("", computed) if settled else computed()
    if earlier:
        fitted, left_out = earlier, earlier.notes(taken(table, kept), path.name)
    else:
        fitted, left_out = features.fit(table, found, kept, dates)
    if settled:
        fitted = features.from_json(settled.preprocessing)
    _check_varied(fitted, found, path)
    about = [
        *found.notes(),
        *dates.notes(),
        *alike(data.target[0], head.classes),
        *revealing_columns.describe(table, found, goal, kept, dates.names),
        *notes,
        *left_out,
    ]
    train = _TablePart(path, "data.train", fitted.tensors(table), rows, goal, about)
    if isinstance(data.validation, str):
        place = job.resolve(data.validation)
        own = _part(place, "data.validation", fitted, data.target, classes, data.bad_samples, files)
        validation = own.split(own.rows, head)
        twice = copies.shared(
            train.split(kept, head).contents(), validation.contents(), validation.title, "validation rows"
        )
        own.notes.extend(twice)
    else:
        own = _TablePart(path, "data.train", train.inputs, held, goal, fitted.notes(taken(table, held), "validation"))
        validation = own.split(held, head)
    counts = f"{len(kept):,} training and {len(validation):,} validation rows"
    stored = {"kind": "table", "target": list(data.target), "classes": classes, **fitted.to_json(), **division.stored()}
    return Dataset(
        train.split(kept, head),
        validation,
        {"": head},
        stored,
        as_it_is,
        mixable=not fitted.categories,
        notes=[counts, *train.notes, *own.notes],
    )


def _check_varied(fitted: Features, found: Roles, path: Path) -> None:
    """Refuse a table of which nothing is left to learn from."""
    if not fitted.names:
        raise DataError(
            f"data.train: all {len(found.names)} features of {path} are constant in the training rows",
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
    wanted = preprocessing["target"] if labelled else ()
    parts = [_part(path, "data", fitted, wanted, preprocessing["classes"], budget, files) for path in paths]
    starts = np.cumsum([0, *(len(part.inputs[0]) for part in parts)])
    rows = np.concatenate([part.rows + start for part, start in zip(parts, starts, strict=False)])
    inputs = tuple(torch.cat(same) for same in zip(*(part.inputs for part in parts), strict=True))
    made: Targets = {}
    if labelled:
        made = {"": torch.cat([part.split(part.rows, head).targets[""] for part in parts])}
    titles = RowNames(tuple(path.name for path in paths), tuple(starts[:-1].tolist()))
    return NewSamples(TableSplit(inputs, rows, made, titles), as_it_is, [note for part in parts for note in part.notes])


def _table(
    path: Path,
    data: TableData,
    classes: bool,
    earlier: Features | None,
    files: CsvFiles,
    categories: Collection[str] = (),
) -> Any:
    """The training table, with the columns that the job uses; those of an earlier run if it starts from one.
    `categories`: columns to keep as text, beside those that the job names.
    """
    options = ("target", "features", "numeric", "categorical", "dates", "ignore")
    wanted = {name: f"data.{option}" for option in reversed(options) for name in getattr(data, option) or ()}
    text = [*_classes(data.target, classes), *(data.categorical or ()), *categories]
    if data.groups:
        text.append(data.groups)
        wanted[data.groups] = "data.groups"
    if earlier:
        wanted |= dict.fromkeys(earlier.file_columns, "model.from")
        text += [category.name for category in earlier.categories]
    return table_file.read(
        path,
        "data.train",
        wanted=wanted,
        only=data.features is not None or earlier is not None,
        leave=data.ignore or (),
        text=text,
        csv=files,
    )


def _classes(target: Sequence[str], classes: bool) -> Sequence[str]:
    """The target column if it holds classes, which is read as text; multi-label targets and numbers are not."""
    return target if classes and len(target) == 1 else ()


def _part(
    path: Path,
    key: str,
    fitted: Features,
    target: Sequence[str],
    classes: bool,
    budget: float | None,
    files: CsvFiles,
) -> _TablePart:
    """Read a separate file, preprocessed as the training rows were; without a budget any number of rows may be dropped."""
    text = [*(category.name for category in fitted.categories), *_classes(target, classes)]
    wanted = dict.fromkeys((*fitted.file_columns, *target), key)
    table = table_file.read(path, key, wanted=wanted, only=True, text=text, csv=files)
    table, odd = fitted.dates.expand(table, path, key)
    goal = targets.read(table, target, classes=classes, option=key, source=str(path)) if target else None
    rows, notes = usable(table, [number.name for number in fitted.numbers], goal, odd, path, key, budget)
    return _TablePart(
        path, key, fitted.tensors(table), rows, goal, [*notes, *fitted.notes(taken(table, rows), path.name)]
    )
