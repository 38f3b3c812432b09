"""Reads the data of a job in the order that all kinds of data share, and new data for a trained model.

The order: read the training file, drop bad rows, read targets, hold out validation samples, fit the preprocessing to the
training samples, read other files with it. A kind of data provides the steps: a table, a reader and a preprocessor.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from drivetrain.data import copies, target_columns
from drivetrain.data.copies import ComparableSplit, Contents
from drivetrain.data.dataset import (
    NO_LABEL,
    Dataset,
    Head,
    InputRecord,
    NewSamples,
    Preprocessing,
    Split,
    Targets,
    keep_unchanged,
    mark_partial,
)
from drivetrain.data.formats.csv_dialect import CsvFiles
from drivetrain.data.partition import Division, Groups, Partition, hold_out, hold_out_groups, note_single_samples
from drivetrain.data.source import Source
from drivetrain.data.stateless_random import Ids
from drivetrain.data.target_columns import Strata, TargetColumn
from drivetrain.errors import DataError
from drivetrain.job import Job

if TYPE_CHECKING:
    import torch

Heads = dict[str, Head]
"""Heads of the network by name."""


@dataclass(kw_only=True)
class SampleTable:
    """Samples of one file, as written there."""

    noun: ClassVar[str]
    """Plural of a sample, such as `rows`."""
    single_noun: ClassVar[str] = ""
    """Noun of a sample, if classes of a single one are noted."""
    source: Source
    usable: Ids
    """Numbers of the samples that can be used, ascending."""
    targets: Mapping[str, TargetColumn]
    """Targets of all samples, by head; empty if they are not read."""
    notes: list[str]
    """Notes on the file and on its bad samples."""
    groups: Groups | None = None
    """Number of the group of each usable sample, if the job divides by groups."""
    group_column: str = ""
    """Column of the groups, or their kind in words."""
    code_cure: str = ""
    """Advice on numbers to predict that are codes; empty if `data.missing` makes them missing."""
    files: Sequence[str] = ()
    """Names of the files of the samples; empty if samples are no files."""
    row_numbers: Ids | None = None
    """Row of each usable sample in the file, from 1; None if a sample is no row."""

    def name_target(self, sample: int) -> str:
        """Name the place of the target of a sample in the file."""
        return self.source.name_row(sample)

    def name_target_key(self, head: str) -> str:
        """Name the place of the targets of a head, for errors about unknown classes."""
        return self.source.key


T = TypeVar("T", bound=SampleTable)


class Preprocessor(ABC, Generic[T]):
    """Preprocessing fitted to training samples; reads other files with it."""

    @property
    def prepare(self) -> Preprocessing:
        """Conversion of raw inputs on the device."""
        return keep_unchanged

    @abstractmethod
    def read(self, source: Source) -> T:
        """Read another file with the columns of training."""

    def read_all(self, sources: Sequence[Source]) -> list[T]:
        """Read the files with new samples."""
        return [self.read(source) for source in sources]

    @abstractmethod
    def build_split(self, tables: Sequence[T], rows: Sequence[Ids], targets: Targets) -> tuple[Split, list[str]]:
        """Convert some samples of each table; also returns notes on values that only the conversion shows."""

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values that are stored with the model."""

    def compare(self, table: T, rows: Ids) -> list[str]:
        """Return notes on values of some samples that are unlike the values of the training samples."""
        return []

    def note_codes(self, table: T, *, is_new: bool) -> list[str]:
        """Return notes on numbers of usable samples that are codes such as -9999."""
        return []


class Reader(ABC, Generic[T]):
    """Steps for reading the data of a job, which the functions below put in order."""

    def __init__(self, job: Job, recorded: InputRecord | None) -> None:
        """Prepare to read the data of a job, with the preprocessing and heads of an earlier start if there are any."""
        self.job, self.recorded, self.tables_only = job, recorded, False
        self.earlier = recorded.preprocessing if recorded and not recorded.same_data else None

    @abstractmethod
    def read(self, source: Source) -> T:
        """Read the training file; raises DataError if it cannot be used."""

    @abstractmethod
    def fit(self, table: T, training: Ids, heads: Heads) -> tuple[Preprocessor[T], list[str]]:
        """Fit the preprocessing to the training samples, or restore the recorded one; also returns notes.

        With `tables_only`, only the values that `Preprocessor.read` needs are fitted, without torch.
        """

    def digest(self, table: T) -> tuple[Contents, bool] | None:
        """Return a digest of each usable sample, and whether equal samples are no copies; None if copies do not occur."""
        return None

    def find_strata(self, table: T, target: TargetColumn) -> Strata:
        """Find the class of each usable sample in one of its targets, which stratifies the split."""
        return target_columns.find_strata(target, table.usable)

    def hold_out(self, table: T, division: Division | None) -> Partition:
        """Hold out validation samples: whole groups, or a share of each class. Indices are those of usable samples."""
        strata = [self.find_strata(table, target) for target in table.targets.values()]
        if table.groups is not None:
            members = division.join_groups(table.groups) if division else table.groups
            return hold_out_groups(self.job, strata, table.group_column, members, division)
        assert division is not None
        partition = hold_out(self.job, strata[0], division)
        if table.single_noun:
            partition.notes[:0] = note_single_samples(strata[0], table.single_noun)
        return partition

    def build_head(self, name: str, table: T, training: Ids) -> Head:
        """Build the head of a target from the classes of usable samples, or the numbers of training samples."""
        return target_columns.build_head(table.targets[name], table.usable, training, table.source.key)

    def note_columns(self, table: T, training: Ids, heads: Heads) -> list[str]:
        """Return notes on the columns of the training file."""
        return []

    def note_shared(self, train: T, split: Split, other: T, validation: Split) -> list[str]:
        """Return notes on validation samples of another file that are also in the training data."""
        if not (isinstance(split, ComparableSplit) and isinstance(validation, ComparableSplit)):
            return []
        return copies.note_shared(split.contents(), validation.contents(), validation.title, f"validation {train.noun}")

    def describe_samples(self, table: T, heads: Heads) -> str:
        """Describe a sample, after the numbers of samples in the first note."""
        return ""

    def complete(self, dataset: Dataset, table: T, training: Ids) -> Dataset:
        """Return the dataset with the values that only this kind of data has."""
        return dataset


@dataclass
class TrainingData(Generic[T]):
    """The training file of a job, read and divided."""

    table: T
    partition: Partition
    """Numbers of the samples for training and for validation."""
    heads: Heads
    preprocessor: Preprocessor[T]
    notes: list[str]


def read_training(reader: Reader[T], files: CsvFiles) -> TrainingData[T]:
    """Read the training file, hold out validation samples, and fit heads and preprocessing to the others.

    Raises:
        DataError: if the file cannot be used.
    """
    job, recorded = reader.job, reader.recorded
    table = reader.read(Source.of_job(job, "train", files))
    partition = _divide(reader, table)
    heads = {}
    for name in table.targets:
        build = partial(reader.build_head, name, table, partition.training)
        heads[name] = recorded.head(name, build) if recorded else build()
    preprocessor, fit_notes = reader.fit(table, partition.training, heads)
    notes = [
        *reader.note_columns(table, partition.training, heads),
        *table.notes,
        *partition.notes,
        *fit_notes,
        *preprocessor.note_codes(table, is_new=False),
        *_note_target_codes(table, heads, is_new=False),
    ]
    return TrainingData(table, partition, heads, preprocessor, notes)


def _divide(reader: Reader[T], table: T) -> Partition:
    """Divide the usable samples, unless validation has a file."""
    if reader.job.data_path("validation") is not None:
        return Partition(table.usable, table.usable[:0], [])
    digest = reader.digest(table)
    division = None
    if digest:
        contents, are_independent = digest
        division = Division(contents, table.noun, reader.recorded, independent=are_independent)
    partition = reader.hold_out(table, division)
    return replace(partition, training=table.usable[partition.training], validation=table.usable[partition.validation])


def load(reader: Reader[T], files: CsvFiles) -> Dataset:
    """Read and check the data of a job.

    Raises:
        DataError: if it cannot be used.
    """
    data = read_training(reader, files)
    table, training, heads, preprocessor = data.table, data.partition.training, data.heads, data.preprocessor
    other, rows = table, data.partition.validation
    has_file = reader.job.data_path("validation") is not None
    if has_file:
        other = preprocessor.read(Source.of_job(reader.job, "validation", files))
        rows = other.usable
    rows, validation_notes = _keep_scored(other, rows, heads)
    encoded, encoded_validation = encode_targets(table, training, heads), encode_targets(other, rows, heads)
    heads, target_notes = _mark_heads(heads, encoded, encoded_validation, table.noun)
    train, _ = preprocessor.build_split([table], [training], _to_tensors(encoded))
    validation, split_notes = preprocessor.build_split([other], [rows], _to_tensors(encoded_validation))
    validation_notes += split_notes
    if has_file:
        validation_notes += _note_other(preprocessor, other, heads)
        validation_notes += reader.note_shared(table, train, other, validation)
    else:
        validation_notes += preprocessor.compare(other, rows)
    counts = f"{len(train):,} training and {len(validation):,} validation {table.noun}"
    dataset = Dataset(
        train,
        validation,
        heads,
        preprocessor.to_json() | dict(data.partition.stored),
        preprocessor.prepare,
        notes=[
            counts + reader.describe_samples(table, heads),
            *data.notes,
            *target_notes,
            *validation_notes,
        ],
        files={part.source.key: part.files for part in (table, other) if part.files},
    )
    return reader.complete(dataset, table, training)


def check(reader: Reader[T], files: CsvFiles) -> tuple[int, list[str]]:
    """Read the tables of a job as `load` does, without torch; returns the number of training samples, and notes."""
    reader.tables_only = True
    data = read_training(reader, files)
    notes = data.notes
    for name in ("validation", "test"):
        if reader.job.data_path(name) is not None:
            other = data.preprocessor.read(Source.of_job(reader.job, name, files))
            encoded = encode_targets(other, other.usable, data.heads)
            notes += [*_note_other(data.preprocessor, other, data.heads), *note_missing(encoded, other.noun)]
    return len(data.partition.training), notes


def read_new(preprocessor: Preprocessor[T], sources: Sequence[Source], heads: Mapping[str, Head]) -> NewSamples:
    """Read new samples of files, as validation samples; raises as `load_data.load_new` does."""
    tables = preprocessor.read_all(sources)
    notes, encoded = list[str](), list[dict[str, npt.NDArray[Any]]]()
    for table in tables:
        encoded.append(encode_targets(table, table.usable, heads))
        notes += _note_other(preprocessor, table, heads)
    joined = {name: np.concatenate([targets[name] for targets in encoded]) for name in encoded[0]}
    split, split_notes = preprocessor.build_split(tables, [table.usable for table in tables], _to_tensors(joined))
    # With several files, a row number alone does not identify a row.
    row_numbers = tables[0].row_numbers if len(tables) == 1 else None
    notes += note_missing(joined, tables[0].noun)
    files = [name for table in tables for name in table.files]
    return NewSamples(split, preprocessor.prepare, [*notes, *split_notes], row_numbers, files)


def encode_targets(table: SampleTable, rows: Ids, heads: Mapping[str, Head]) -> dict[str, npt.NDArray[Any]]:
    """Encode the targets of some samples, by head; raises DataError for a class that training did not have."""
    return {
        name: target_columns.encode(target, rows, heads[name], table.name_target_key(name))
        for name, target in table.targets.items()
    }


def _to_tensors(encoded: Mapping[str, npt.NDArray[Any]]) -> dict[str, torch.Tensor]:
    import torch

    return {name: torch.from_numpy(values) for name, values in encoded.items()}


def _keep_scored(table: SampleTable, rows: Ids, heads: Heads) -> tuple[Ids, list[str]]:
    """Keep the validation samples whose numbers to predict are no codes, and note the others."""
    notes = []
    for name, target in table.targets.items():
        rows, head_notes = target_columns.keep_scored(target, rows, heads[name])
        notes += head_notes
    return rows, notes


def _note_target_codes(table: SampleTable, heads: Mapping[str, Head], *, is_new: bool) -> list[str]:
    """Return notes on numbers to predict that are codes."""
    notes = []
    for name, target in table.targets.items():
        notes += target_columns.note_codes(
            target,
            table.usable,
            heads[name],
            table.name_target,
            table.code_cure,
            is_new=is_new,
            budget=table.source.budget,
        )
    return notes


def _note_other(preprocessor: Preprocessor[T], table: T, heads: Mapping[str, Head]) -> list[str]:
    """Return notes on a file other than the training file."""
    codes = [*preprocessor.note_codes(table, is_new=True), *_note_target_codes(table, heads, is_new=True)]
    file_name = table.source.path.name
    return [*table.notes, *preprocessor.compare(table, table.usable), *(f"{file_name}: {note}" for note in codes)]


def _mark_heads(
    heads: Heads, training: Mapping[str, npt.NDArray[Any]], validation: Mapping[str, npt.NDArray[Any]], noun: str
) -> tuple[Heads, list[str]]:
    """Mark heads for which some samples have no label, by the targets of both sides; also returns notes.

    Raises:
        DataError: if no sample of a side has a label for a head.
    """
    notes = []
    for side, targets in (("training", training), ("validation", validation)):
        for name, values in targets.items():
            if values.ndim == 1 and len(values) and bool((values == NO_LABEL).all()):
                raise DataError(
                    f"none of the {len(values):,} {side} {noun} has a label",
                    "some labels of each column on both sides",
                    "add labels, remove the column, or change data.validation",
                    key=f"data.labels.{name}",
                )
        notes += note_missing(targets, f"{side} {noun}")
    return mark_partial(heads, [training, validation]), notes


def note_missing(targets: Mapping[str, npt.NDArray[Any]], noun: str) -> list[str]:
    """Return notes on samples that have no label for a head, by the class indices (N,) of each head."""
    notes = []
    for name, values in targets.items():
        total, missing_count = len(values), int((values == NO_LABEL).sum()) if values.ndim == 1 else 0
        if missing_count and missing_count == total:
            notes.append(f'"{name}": none of the {total:,} {noun} has a label, so it has no scores')
        elif missing_count:
            notes.append(f'"{name}": {missing_count:,} of {total:,} {noun} have no label; they count for the others')
    return notes
