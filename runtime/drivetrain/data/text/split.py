"""Texts of a text job in memory, divided into training and validation, with the class index of each label."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from drivetrain.data import copies, labels, partition, target_columns
from drivetrain.data.copies import Contents
from drivetrain.data.dataset import NO_LABEL, Head, InputRecord, Inputs, Targets, mark_partial
from drivetrain.data.formats.csv_dialect import CsvFiles
from drivetrain.data.notes import list_counts, list_names
from drivetrain.data.source import check_bad_samples
from drivetrain.data.stateless_random import Ids
from drivetrain.data.text import corpus, unknown_words
from drivetrain.data.text.corpus import Corpus
from drivetrain.data.text.encoded import Encoded, Ragged, pad_inputs
from drivetrain.data.text.job_tokenizer import TextEncoding
from drivetrain.errors import DataError
from drivetrain.job.text import TextJob

if TYPE_CHECKING:
    import pyarrow

Classes = dict[str, npt.NDArray[np.int64]]
"""Class index of each row, by head; NO_LABEL if the row has none."""
Heads = dict[str, Head]
"""Heads of the network by name."""
_SEPARATOR = "\x1f"
"""Separator between the texts of a row when rows are compared."""
_COMPARED_ROWS = 65_536
"""Number of rows whose texts are copied at a time to compare rows."""


@dataclass(eq=False)
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

    def take(self, indices: Ids) -> TextPart:
        """Return some rows of the part, by their indices in it."""
        return TextPart(
            self.source, self.rows[indices], {name: column[indices] for name, column in self.classes.items()}
        )

    def contents(self, lower_case: bool = True) -> Contents:
        """Return a digest of each row's texts; it ignores the Unicode form and the number of blanks between words.

        Args:
            lower_case: whether the digest ignores capital letters too.
        """
        digests = [np.zeros(0, np.int64)]
        for start in range(0, len(self), _COMPARED_ROWS):
            texts = [text.slice(start, _COMPARED_ROWS) for text in self.texts]
            digests.append(copies.digest_contents(_normalize_texts(texts, lower_case)))
        return np.concatenate(digests)

    def title(self, index: int) -> str:
        """Return the row and first words of one text."""
        return self.source.title(int(self.rows[index]))


@dataclass(eq=False)
class TextSplit(TextPart):
    """A split of tokenized texts in memory."""

    masked: ClassVar = True
    """The last input is a mask of real tokens (protocol `Masked`)."""
    tokens: Ragged
    pad: int
    types: Ragged | None = None

    def __post_init__(self) -> None:
        import torch

        self.targets: Targets = {name: torch.from_numpy(class_indices) for name, class_indices in self.classes.items()}

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """Number of tokens of each text."""
        return self.tokens.lengths

    def gather(self, ids: Ids) -> Inputs:
        """Return token ids, token types if the network has them, and attention mask (see `encoded.pad_inputs`)."""
        return pad_inputs(self.tokens, () if self.types is None else (self.types,), ids, self.pad)


def build_split(part: TextPart, encoded: Encoded, encoding: TextEncoding) -> TextSplit:
    """Build the split of a part from its `encoded` texts, truncated to the largest length."""
    tokens, *types = encoding.list_sequences(encoded)
    return TextSplit(part.source, part.rows, part.classes, tokens, encoding.tokenizer.pad, *types)


@dataclass
class TextParts:
    """Texts of a job in memory, divided into training and validation."""

    train: TextPart
    validation: TextPart
    heads: Heads
    stored: dict[str, int]
    """Part of the division that the preprocessing stores."""
    notes: list[str]

    def build_splits(self, encoding: TextEncoding, encoded: Encoded) -> tuple[TextSplit, TextSplit]:
        """Build the tokenized splits for training, from its `encoded` texts, and for validation."""
        texts = self.validation.texts
        validation = encoding.tokenizer.encode(texts)
        unknown = unknown_words.measure(encoding.tokenizer, validation)
        self.notes += unknown_words.describe(
            unknown, encoding.tokenizer, texts, "validation texts", self.validation.title
        )
        return build_split(self.train, encoded, encoding), build_split(self.validation, validation, encoding)


def read(job: TextJob, files: CsvFiles, recorded: InputRecord | None = None) -> TextParts:
    """Read the texts of a job, and split them.

    Raises:
        DataError: if there are no usable texts, or the label columns hold no classes.
    """
    train, notes = _read_usable_rows(job, job.data.train, "data.train", files)
    heads, head_notes = _find_heads(job, train, recorded)
    notes += head_notes
    classes = index_classes(train, heads)
    contents = take_rows(train, classes).contents(job.data.lower_case)
    # Texts that differ in capital letters get their own note, with a remedy.
    written = contents
    if job.data.lower_case and len(np.unique(contents)) < len(contents):
        written = take_rows(train, classes).contents(lower_case=False)
    stored_division: dict[str, int] = {}
    split_notes: list[str] = []
    for column, target in train.labels.items():
        names = [name or None for name in target.list_names(np.arange(len(train)))]
        notes += copies.note_contradictions(written, names, train.place, f'texts, by "{column}",')
    if (validation_path := job.data_path("validation")) is not None:
        validation_corpus, split_notes = _read_usable_rows(job, validation_path, "data.validation", files)
        train_part = take_rows(train, classes)
        validation_part = take_rows(validation_corpus, index_classes(validation_corpus, heads))
    else:
        # Equal texts stay on one side of the split, unless there are so many that they are no copies of each other.
        independent = copies.are_coincidences(contents) or copies.are_few_kinds(contents)
        division = partition.Division(contents, "texts", recorded, independent=independent)
        train_rows, validation_rows, split_notes = _divide(classes, heads, train, job, division)
        stored_division = division.to_json()
        train_part = take_rows(train, classes, train_rows)
        validation_part = take_rows(train, classes, validation_rows)
    if not len(validation_part):
        raise DataError(
            f"{len(train):,} texts in {train.paths[0]}, so none is left for validation",
            "two texts of a class or more",
            "add texts, or set data.validation to a path",
            key="data.train",
        )
    heads, missing_label_notes = _mark_heads(heads, train_part.classes, validation_part.classes)
    notes += [*split_notes, *missing_label_notes, *_note_shared(train_part, validation_part)]
    return TextParts(train_part, validation_part, heads, stored_division, notes)


def check(job: TextJob, recorded: InputRecord | None, files: CsvFiles) -> tuple[int, list[str]]:
    """Read the texts of a job as `read` does, and those for the final test; returns the training texts, and notes."""
    parts = read(job, files, recorded)
    if job.data.test:
        test, test_notes = _read_usable_rows(job, job.data.test, "data.test", files)
        parts.notes += [*test_notes, *note_missing(index_classes(test, parts.heads))]
    return len(parts.train), parts.notes


def take_rows(source: Corpus, classes: Classes, rows: Ids | None = None) -> TextPart:
    """Take some rows of a corpus, or all of them; `classes` has the classes of all its rows."""
    if rows is None:
        return TextPart(source, np.arange(len(source), dtype=np.int64), classes)
    return TextPart(source, rows, {name: class_indices[rows] for name, class_indices in classes.items()})


def index_classes(source: Corpus, heads: Mapping[str, Head]) -> Classes:
    """Return the class index of each row, by head; label columns of the corpus are in the order of the heads.

    Raises:
        DataError: if a label is not among the classes of its head.
    """
    by_head = {}
    for (name, head), (column, target) in zip(heads.items(), source.labels.items(), strict=True):
        by_head[name] = np.full(len(source), NO_LABEL, np.int64)
        rows = target.find_filled()
        by_head[name][rows] = target_columns.encode(target, rows, head, f'{source.key}: column "{column}"')
    return by_head


def _number_strata(classes: Classes) -> Ids:
    """Return the class of each row in the first head; rows without a label form one more class."""
    first_classes = next(iter(classes.values()))
    return np.where(first_classes == NO_LABEL, first_classes.max() + 1, first_classes)


def _mark_heads(heads: Heads, training: Mapping[str, Any], validation: Mapping[str, Any]) -> tuple[Heads, list[str]]:
    """Mark heads for which some texts have no label, by the targets of both parts; also returns notes.

    Raises:
        DataError: if no text of a part has a label for a head.
    """
    notes = []
    for part, targets in (("training", training), ("validation", validation)):
        for name in heads:
            if len(targets[name]) and bool((targets[name] == NO_LABEL).all()):
                raise DataError(
                    f"none of the {len(targets[name]):,} {part} texts has a label",
                    "some labels of each column on both sides",
                    "add labels, remove the column, or change data.validation",
                    key=f"data.labels.{name}",
                )
        notes += note_missing(targets, f"{part} texts")
    return mark_partial(heads, [training, validation]), notes


def note_missing(targets: Mapping[str, Any], texts: str = "texts") -> list[str]:
    """Return notes on texts that have no label for a head, by the class indices (N,) of each head."""
    notes = []
    for name, classes in targets.items():
        total, missing_count = len(classes), int((classes == NO_LABEL).sum())
        if missing_count == total:
            notes.append(f'"{name}": none of the {total:,} {texts} has a label, so it has no scores')
        elif missing_count:
            notes.append(f'"{name}": {missing_count:,} of {total:,} {texts} have no label; they count for the others')
    return notes


def _read_usable_rows(job: TextJob, path: str, key: str, files: CsvFiles) -> tuple[Corpus, list[str]]:
    """Read the usable rows of a file; also returns notes on the other rows."""
    keys_by_column = {column: f"data.labels.{column}" for column in job.data.labels}
    # Groups only matter if validation texts are held out of the training texts.
    group_column = job.data.groups if key == "data.train" and job.data_path("validation") is None else None
    source = corpus.read(job.resolve(path), key, job.data.text, keys_by_column, "data.text", files, group_column)
    return source, check_bad_samples(source.bad, len(source) + len(source.bad), job.data.bad_samples, key)


def _find_heads(job: TextJob, train: Corpus, recorded: InputRecord | None) -> tuple[Heads, list[str]]:
    """Find the heads, with the classes of the training texts; also returns notes. A resumed run keeps its heads.

    Raises:
        DataError: if a column holds no classes.
    """
    heads, notes = {}, []
    for name, (column, settings) in zip(job.heads(), job.data.labels.items(), strict=True):
        rows = train.labels[column].find_filled()
        classes = target_columns.list_classes(train.labels[column], rows, f"data.labels.{column}")
        counts = Counter(train.labels[column].list_names(rows))
        rare = sorted(label for label, count in counts.items() if count == 1)
        note = f'"{column}": classes with a single row, which is used for training: {list_names(rare)}'
        notes += [*([note] if rare else []), *labels.note_similar_names(column, classes)]
        heads[name] = Head(
            name,
            classes,
            weight=settings.weight if name else 1.0,
            class_weights=settings.class_weights,
            label_smoothing=settings.label_smoothing,
        )
        notes.append(f'"{column}": {len(classes)} classes, {list_counts(counts, 8)}')
    # A resumed run keeps its class indices.
    return dict(recorded.heads) if recorded and recorded.same_data else heads, notes


def _normalize_texts(texts: Sequence[pyarrow.ChunkedArray], lower_case: bool) -> list[str]:
    """Join the texts of each row to compare rows: in NFKC, with single blanks, in lower case if requested."""
    from pyarrow import compute

    joined = compute.binary_join_element_wise(*(text.cast("string") for text in texts), _SEPARATOR)
    normalized = compute.utf8_normalize(joined, "NFKC")
    normalized = compute.utf8_lower(normalized) if lower_case else normalized
    rows: list[str] = compute.utf8_trim_whitespace(compute.replace_substring_regex(normalized, r"\s+", " ")).to_pylist()
    return rows


def _divide(
    classes: Classes, heads: Heads, train: Corpus, job: TextJob, division: partition.Division
) -> tuple[Ids, Ids, list[str]]:
    """Divide rows into training and validation, stratified by the class of the first head; also returns notes.

    If the job has a group column, groups are not divided. Otherwise a row is moved to training if one of its classes,
    in any head, would occur only in validation.
    """
    strata = _number_strata(classes)
    if train.groups is not None:
        # Moving a row to training would split its group; the note names the classes instead.
        group_numbers = division.join_groups(partition.number_groups(train.groups))
        train_rows, validation_rows = partition.divide_by_group(strata, group_numbers, job.data, job.train.seed)
        without_training = [
            heads[name].classes[index]
            for name, column in classes.items()
            for index in np.setdiff1d(column[validation_rows], [*column[train_rows], NO_LABEL]).tolist()
        ]
        group_note = partition.describe_division(
            job.data.groups or "", group_numbers, train_rows, validation_rows, without_training
        )
        return train_rows, validation_rows, [group_note, *division.describe(train_rows, validation_rows)]
    train_rows, validation_rows = division.divide(strata, job.data, job.train.seed)
    unseen = np.zeros(len(validation_rows), np.bool_)
    for class_indices in classes.values():
        unseen |= ~np.isin(class_indices[validation_rows], np.append(class_indices[train_rows], NO_LABEL))
    if division.keeps_together:
        # Copies of a moved text are moved with it, so that they stay on one side.
        unseen = np.isin(division.content_numbers[validation_rows], division.content_numbers[validation_rows[unseen]])
    note = f"{unseen.sum():,} rows are used for training, since one of their classes would occur only in validation"
    notes = [note] if unseen.any() else []
    if division.keeps_together:
        notes += division.describe(train_rows, validation_rows)
    return np.sort(np.concatenate([train_rows, validation_rows[unseen]])), validation_rows[~unseen], notes


def _note_shared(train: TextPart, validation: TextPart) -> list[str]:
    """Return a note on texts that are in both parts, if there are any."""
    from pyarrow import compute

    train_texts, validation_texts = (
        compute.binary_join_element_wise(*part.texts, _SEPARATOR) for part in (train, validation)
    )
    shared_count = compute.sum(compute.is_in(validation_texts, value_set=train_texts.unique())).as_py() or 0
    note = f"{shared_count:,} of {len(validation):,} validation texts are identical to training texts"
    return [note] if shared_count else []
