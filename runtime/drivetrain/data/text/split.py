"""Splits texts into training and validation, and indexes their classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from drivetrain.data import bad_samples, copies, groups, labels
from drivetrain.data.copies import Contents
from drivetrain.data.dataset import NO_LABEL, Head, InputRecord, mark_partial
from drivetrain.data.formats.csv_dialect import CsvFiles
from drivetrain.data.stateless_random import Ids
from drivetrain.data.text import corpus
from drivetrain.data.text.corpus import Corpus
from drivetrain.errors import DataError
from drivetrain.job.text import TextJob

if TYPE_CHECKING:
    import pyarrow

Classes = dict[str, npt.NDArray[np.int64]]
"""By head: the class index of each row."""
Heads = dict[str, Head]
_BETWEEN = "\x1f"
"""Between the texts of a row where rows are compared."""
_COMPARED_ROWS = 65_536
"""Rows whose texts are copied at a time to compare them."""


@dataclass
class TextPart:
    """Some rows of a corpus."""

    source: Corpus
    rows: Ids
    """Indices into the corpus."""
    classes: Classes

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def texts(self) -> tuple[pyarrow.ChunkedArray, ...]:
        """Pyarrow columns with the texts of each row."""
        return tuple(column.take(self.rows) for column in self.source.texts)

    def contents(self) -> Contents:
        """A digest of each row's texts, whatever their blanks, their case and their form of Unicode."""
        starts = range(0, len(self), _COMPARED_ROWS)
        return np.concatenate(
            [copies.digests(_plain([text.slice(start, _COMPARED_ROWS) for text in self.texts])) for start in starts]
        )

    def title(self, index: int) -> str:
        """Row and first words of one text."""
        return self.source.title(int(self.rows[index]))


def read(
    job: TextJob, files: CsvFiles, recorded: InputRecord | None = None
) -> tuple[TextPart, TextPart, Heads, dict[str, int], list[str]]:
    """Training part, validation part, heads, what the preprocessing stores of the split, and notes.

    Args:
        job: the job.
        files: how CSV files are written; gets what was found.
        recorded: preprocessing and heads of the run; heads of another run are not used.

    Raises:
        DataError: if there are no usable texts, or the label columns hold no classes.
    """
    train, notes = _usable(job, job.data.train, "data.train", files)
    heads, new_notes = heads_of(job, train)
    heads = dict(recorded.heads) if recorded and recorded.same_data else heads
    notes += new_notes
    classes = indices(train, heads)
    contents, marks = whole(train, classes).contents(), dict[str, int]()
    for column, written in train.labels.items():
        notes += copies.contradictions(contents, written, train.place, f'texts, by "{column}",')
    if isinstance(job.data.validation, str):
        validation_corpus, new_notes = _usable(job, job.data.validation, "data.validation", files)
        parts = whole(train, classes), whole(validation_corpus, indices(validation_corpus, heads))
    else:
        independent = copies.are_coincidences(contents) or copies.are_few_kinds(contents)
        division = copies.Division(contents, "texts", recorded, independent=independent)
        train_rows, validation_rows, new_notes = _divide(classes, heads, train, job, division)
        marks = division.stored()
        parts = _take_rows(train, train_rows, classes), _take_rows(train, validation_rows, classes)
    if not len(parts[1]):
        raise DataError(
            f"data.train: {len(train):,} texts in {train.paths[0]}, so none is left for validation",
            "two texts of a class or more",
            "add texts, or set data.validation to a path",
        )
    heads, lacking = mark_heads(heads, {"training": parts[0].classes, "validation": parts[1].classes})
    return *parts, heads, marks, [*notes, *new_notes, *lacking, *_note_shared(*parts)]


def whole(source: Corpus, classes: Classes) -> TextPart:
    """All rows of a corpus."""
    return TextPart(source, np.arange(len(source), dtype=np.int64), classes)


def indices(source: Corpus, heads: Mapping[str, Head]) -> Classes:
    """The class index of each row, by head; label columns of the corpus are in the order of the heads.

    Raises:
        DataError: for a label that is not among the classes of its head.
    """
    by_head = {}
    for (name, head), (column, label_texts) in zip(heads.items(), source.labels.items(), strict=True):
        by_head[name] = np.full(len(label_texts), NO_LABEL, np.int64)
        present = np.array([label is not None for label in label_texts], np.bool_)
        texts = [label for label in label_texts if label is not None]
        by_head[name][present] = labels.indices(texts, head.classes, f'{source.key}: column "{column}"')
    return by_head


def mark_heads(heads: Heads, parts: Mapping[str, Mapping[str, Any]]) -> tuple[Heads, list[str]]:
    """The heads, each with whether some texts have no label for it, and notes on how many.

    Args:
        heads: the heads.
        parts: the targets of the training and of the validation part, by the name of the part.

    Raises:
        DataError: if no text of a part has a label for a head.
    """
    notes = []
    for name in heads:
        for part, targets in parts.items():
            total, lacking = len(targets[name]), int((targets[name] == NO_LABEL).sum())
            if lacking and lacking == total:
                raise DataError(
                    f"data.labels.{name}: none of the {total:,} {part} texts has a label",
                    "some labels of each column on both sides",
                    "add labels, remove the column, or change data.validation",
                )
            if lacking:
                notes.append(
                    f'"{name}": {lacking:,} of {total:,} {part} texts have no label; they count for the others'
                )
    return mark_partial(heads, list(parts.values())), notes


def count_missing(targets: Mapping[str, Any]) -> list[str]:
    """Notes on new texts that have no label for a head.

    Args:
        targets: class indices (N,) by head.
    """
    notes = []
    for name, classes in targets.items():
        total, lacking = len(classes), int((classes == NO_LABEL).sum())
        if lacking == total:
            notes.append(f'"{name}": none of the {total:,} texts has a label, so it has no scores')
        elif lacking:
            notes.append(f'"{name}": {lacking:,} of {total:,} texts have no label; they count for the others')
    return notes


def _usable(job: TextJob, path: str, key: str, files: CsvFiles) -> tuple[Corpus, list[str]]:
    options = {column: f"data.labels.{column}" for column in job.data.labels}
    together = job.data.groups if key == "data.train" and not isinstance(job.data.validation, str) else None
    source = corpus.read(job.resolve(path), key, job.data.text, options, "data.text", files, together)
    return source, bad_samples.check(source.bad, len(source) + len(source.bad), job.data.bad_samples, key)


def heads_of(job: TextJob, train: Corpus) -> tuple[Heads, list[str]]:
    """The heads by the labels of the training texts, and notes.

    Raises:
        DataError: if a column holds no classes.
    """
    heads, notes = {}, []
    for name, (column, settings) in zip(job.heads(), job.data.labels.items(), strict=True):
        written = [label for label in train.labels[column] if label is not None]
        classes = labels.class_names(written)
        notes += corpus.check_classes(written, classes, column, f"data.labels.{column}")
        heads[name] = Head(
            name,
            classes,
            weight=settings.weight if name else 1.0,
            class_weights=settings.class_weights,
            label_smoothing=settings.label_smoothing,
        )
        notes.append(f'"{column}": {len(classes)} classes: {_format_counts(written)}')
    return heads, notes


def _format_counts(label_texts: Sequence[str]) -> str:
    names, counts = np.unique(np.array(label_texts, object), return_counts=True)
    order = np.argsort(-counts, kind="stable")
    return labels.list_names([f"{names[i]} {counts[i]:,} ({counts[i] / len(label_texts):.0%})" for i in order], 8)


def _plain(texts: Sequence[pyarrow.ChunkedArray]) -> list[str]:
    """The texts of some rows, joined, in one case and form of Unicode, with single blanks."""
    from pyarrow import compute

    joined = compute.binary_join_element_wise(*(text.cast("string") for text in texts), _BETWEEN)
    plain = compute.utf8_lower(compute.utf8_normalize(joined, "NFKC"))
    rows: list[str] = compute.utf8_trim_whitespace(compute.replace_substring_regex(plain, r"\s+", " ")).to_pylist()
    return rows


def _take_rows(source: Corpus, rows: Ids, classes: Classes) -> TextPart:
    return TextPart(source, rows, {name: class_indices[rows] for name, class_indices in classes.items()})


def _divide(
    classes: Classes, heads: Heads, train: Corpus, job: TextJob, division: copies.Division
) -> tuple[Ids, Ids, list[str]]:
    """Rows for training and for validation, stratified by the class of the first head; whole groups if the job has a
    column of them.

    A row with a class, in any head, that would otherwise occur only in validation is moved to training.
    """
    # Texts without a label for the first head are a stratum of their own.
    first = next(iter(classes.values()))
    strata = np.where(first == NO_LABEL, first.max() + 1, first)
    if train.groups is not None:
        group_numbers = division.whole(groups.number_groups(train.groups))
        train_rows, validation_rows = groups.divide(strata, group_numbers, job.data, job.train.seed, "data.train")
        without_training = [
            heads[name].classes[index]
            for name, column in classes.items()
            for index in np.setdiff1d(column[validation_rows], [*column[train_rows], NO_LABEL]).tolist()
        ]
        return (
            train_rows,
            validation_rows,
            [
                groups.note(job.data.groups or "", group_numbers, train_rows, validation_rows, without_training),
                *division.notes(train_rows, validation_rows),
            ],
        )
    train_rows, validation_rows = division.divide(strata, job.data, job.train.seed)
    unseen = np.zeros(len(validation_rows), np.bool_)
    for group_numbers in classes.values():
        unseen |= ~np.isin(group_numbers[validation_rows], np.append(group_numbers[train_rows], NO_LABEL))
    if division.together:
        unseen = np.isin(division.copies[validation_rows], division.copies[validation_rows[unseen]])
    note = f"{unseen.sum():,} rows are used for training, since one of their classes would occur only in validation"
    notes = [note] if unseen.any() else []
    if division.together:
        notes += division.notes(train_rows, validation_rows)
    return np.sort(np.concatenate([train_rows, validation_rows[unseen]])), validation_rows[~unseen], notes


def _note_shared(train: TextPart, validation: TextPart) -> list[str]:
    """A note on texts that are in both parts, which makes validation scores too good."""
    from pyarrow import compute

    train_texts, new = (compute.binary_join_element_wise(*part.texts, _BETWEEN) for part in (train, validation))
    twice = compute.sum(compute.is_in(new, value_set=train_texts.unique())).as_py() or 0
    return [f"{twice:,} of {len(validation):,} validation texts are identical to training texts"] if twice else []
