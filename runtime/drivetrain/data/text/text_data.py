"""Reads the data of a text job into memory, tokenized once before the training."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from drivetrain.data import copies, target_columns
from drivetrain.data.copies import Contents
from drivetrain.data.dataset import Dataset, Head, Split, Targets
from drivetrain.data.labels import note_similar_names, sort_class_names
from drivetrain.data.notes import list_counts
from drivetrain.data.partition import Division, Partition, check_validation, note_single_samples
from drivetrain.data.reading import Heads, Preprocessor, Reader
from drivetrain.data.source import Source
from drivetrain.data.stateless_random import Ids
from drivetrain.data.target_columns import Strata, TargetColumn
from drivetrain.data.text import corpus, job_tokenizer, unknown_words
from drivetrain.data.text.corpus import TextSplit, TextTable
from drivetrain.data.text.encoded import Encoded
from drivetrain.data.text.job_tokenizer import TextEncoding
from drivetrain.errors import DataError
from drivetrain.job.text import TextJob
from drivetrain.system.console import Detail


class TextReader(Reader[TextTable]):
    """Reads the texts of a text job."""

    job: TextJob

    def read(self, source: Source) -> TextTable:
        """Read the usable rows of the training file."""
        # Groups only matter if validation texts are held out of the training texts.
        groups = self.job.data.groups if self.job.data_path("validation") is None else None
        table = corpus.read(source, self.job.data.text, self._list_labels(), groups)
        for target in table.targets.values():
            target_columns.list_classes(target, target.find_filled(), f"data.labels.{target.names[0]}")
        return table

    def _list_labels(self) -> dict[str, str]:
        return dict(zip(self.job.heads(), self.job.data.labels, strict=True))

    def digest(self, table: TextTable) -> tuple[Contents, bool]:
        """Digest the texts; if a few repeat others, or very many do, they are no copies of each other."""
        contents = table.digest(table.usable, lower_case=self.job.data.lower_case)
        return contents, copies.are_coincidences(contents) or copies.are_few_kinds(contents)

    def find_strata(self, table: TextTable, target: TargetColumn) -> Strata:
        """Find the class of each text, in the order of the outputs."""
        return target_columns.find_ordered_strata(target, table.usable)

    def hold_out(self, table: TextTable, division: Division | None) -> Partition:
        """Hold out texts; without groups, a text is moved to training if one of its classes would occur only in validation."""
        assert division is not None
        partition = super().hold_out(table, division)
        if table.groups is not None:
            # Moving a text to training would split its group; a note names the classes instead.
            return partition
        training, validation = partition.training, partition.validation
        unseen = np.zeros(len(validation), np.bool_)
        for target in table.targets.values():
            assert target.indices is not None
            unseen |= ~np.isin(target.indices[validation], np.append(target.indices[training], -1))
        if division.keeps_together:
            # Copies of a moved text are moved with it, so that they stay on one side.
            unseen = np.isin(division.content_numbers[validation], division.content_numbers[validation[unseen]])
        if not unseen.any():
            return partition
        check_validation(len(validation) - int(unseen.sum()), len(table.usable), table.noun)
        note = f"{unseen.sum():,} rows are used for training, since one of their classes would occur only in validation"
        training = np.sort(np.concatenate([training, validation[unseen]]))
        notes = [note, *division.describe(training, validation[~unseen])]
        return replace(partition, training=training, validation=validation[~unseen], notes=notes)

    def build_head(self, name: str, table: TextTable, training: Ids) -> Head:
        """Build a head with the classes of all texts, and its settings."""
        target = table.targets[name]
        settings = self.job.data.labels[target.names[0]]
        return Head(
            name,
            sort_class_names(target.list_names(target.find_filled())),
            weight=settings.weight if name else 1.0,
            class_weights=settings.class_weights,
            label_smoothing=settings.label_smoothing,
        )

    def fit(self, table: TextTable, training: Ids, heads: Heads) -> tuple[FittedTexts, list[str]]:
        """Choose the tokenizer and the largest length, and encode the training texts; also returns notes."""
        if self.tables_only:
            return FittedTexts(self.job.data.text, self._list_labels()), []
        texts = table.take(training)
        encoding, encoded, notes = job_tokenizer.choose(self.job, texts, self.recorded)
        unknown = unknown_words.measure(encoding.tokenizer, encoded)
        notes += unknown_words.describe(
            unknown, encoding.tokenizer, texts, "training texts", lambda index: table.title(int(training[index]))
        )
        if unknown.share > unknown_words.MAX_SHARE:
            raise job_tokenizer.unknown_words_error(self.job, notes[-1])
        self.encoded, self.tokenizer, self.unknown_share = encoded, encoding.tokenizer, unknown.share
        stored = job_tokenizer.build_preprocessing(self.job, heads, encoding)
        return FittedTexts(self.job.data.text, self._list_labels(), stored, encoding, (training, encoded)), notes

    def note_columns(self, table: TextTable, training: Ids, heads: Heads) -> list[str]:
        """Return notes on the classes of each label column, and on equal texts with different labels."""
        notes, written = list[str](), table.digest(table.usable, lower_case=False)
        for name, target in table.targets.items():
            column, counts = target.names[0], Counter(target.list_names(target.find_filled()))
            notes += [f'"{column}": {note}' for note in note_single_samples(self.find_strata(table, target), "row")]
            notes += note_similar_names(column, heads[name].classes)
            notes.append(f'"{column}": {len(heads[name].classes)} classes, {list_counts(counts, 8)}')
        for target in table.targets.values():
            names = [label or None for label in target.list_names(table.usable)]
            noun = f'texts, by "{target.names[0]}",'
            notes += copies.note_contradictions(written, names, table.name_place, noun)
        return notes

    def complete(self, dataset: Dataset, table: TextTable, training: Ids) -> Dataset:
        """Add notes on lost letters and on padding to the dataset."""
        # Imported here: letters are compared with scipy, which `check` does without.
        from drivetrain.data.text import letter_case

        job, train = self.job, dataset.train
        assert isinstance(train, TextSplit)
        padding = job_tokenizer.padding(
            train.lengths, dataset.preprocessing["max_length"], job.train.batch, job.train.seed
        )
        notes = letter_case.note_lost_letters(job, train, dataset.heads, self.encoded, self.tokenizer)
        if not job.checkpoint.best and len(job.data.labels) > 1:
            notes.append(f"the best checkpoint is chosen by {job.best()}, the first column with the largest weight")
        return replace(
            dataset,
            mixable=False,
            notes=[*dataset.notes, *notes, Detail(padding.note())],
            facts={"padding": asdict(padding), "unknown_words": {"share": self.unknown_share}},
        )


@dataclass(frozen=True)
class FittedTexts(Preprocessor[TextTable]):
    """Columns, tokenizer and largest length of texts."""

    columns: Sequence[str]
    labels: Mapping[str, str]
    """Label column of each head."""
    stored: Mapping[str, Any] | None = None
    encoding: TextEncoding | None = None
    """Settings that turn texts into tokens; None if texts are only read."""
    training: tuple[Ids, Encoded] | None = None
    """Rows of the training texts and their tokens, which are counted to fit the largest length."""

    def read(self, source: Source) -> TextTable:
        """Read another file with the columns of training."""
        return corpus.read(source, self.columns, self.labels if source.labelled else {})

    def build_split(
        self, tables: Sequence[TextTable], rows: Sequence[Ids], targets: Targets
    ) -> tuple[Split, list[str]]:
        """Encode some texts of each table; also returns notes on texts that are cut, and on unknown words."""
        assert self.encoding is not None
        if not sum(map(len, rows)):
            notes = [note for table in tables for note in table.notes]
            raise DataError("\n    ".join(notes), "at least one row with a text", "check how the file was written")
        table = corpus.join(tables)
        taken = rows[0] if len(rows) == 1 else table.usable
        if self.training and taken is self.training[0]:
            encoded, notes = self.training[1], []
        else:
            encoded = self.encoding.tokenizer.encode(table.take(taken))
            notes = self._compare(table, taken, encoded)
        tokens, *types = self.encoding.list_sequences(encoded)
        return TextSplit(table, taken, targets, tokens, self.encoding.tokenizer.pad, *types), notes

    def _compare(self, table: TextTable, rows: Ids, encoded: Encoded) -> list[str]:
        assert self.encoding is not None
        tokenizer, notes, noun = self.encoding.tokenizer, list[str](), "validation texts"
        if table.source.key == "data":
            notes, noun = (
                job_tokenizer.note_truncated(encoded.lengths, self.encoding.longest, self.encoding.side),
                "texts",
            )
        unknown = unknown_words.measure(tokenizer, encoded)
        title = lambda index: table.title(int(rows[index]))  # noqa: E731
        return [*notes, *unknown_words.describe(unknown, tokenizer, table.take(rows), noun, title)]

    def to_json(self) -> dict[str, Any]:
        """Return columns, tokenizer and length as plain JSON values."""
        return dict(self.stored or {})


def restore(preprocessing: Mapping[str, Any]) -> FittedTexts:
    """Restore the preprocessing of a trained model."""
    names = preprocessing["text"]
    columns = [names] if isinstance(names, str) else list(names)
    return FittedTexts(columns, preprocessing["labels"], encoding=TextEncoding.of_model(preprocessing))
