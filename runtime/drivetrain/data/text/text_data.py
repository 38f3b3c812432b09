"""Loads the data of a text-classification job; texts are tokenized once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch

from drivetrain.data import bad_samples
from drivetrain.data.copies import Contents
from drivetrain.data.dataset import Dataset, Head, InputRecord, Inputs, NewSamples, Targets, as_it_is
from drivetrain.data.formats import csv_dialect
from drivetrain.data.formats.csv_dialect import CsvFiles
from drivetrain.data.notes import Detail
from drivetrain.data.stateless_random import Ids
from drivetrain.data.text import corpus, job_tokenizer, max_length, tokenizer
from drivetrain.data.text import split as text_split
from drivetrain.data.text.encoded import Ragged
from drivetrain.data.text.split import TextPart
from drivetrain.data.text.tokenizer import Tokenizer
from drivetrain.errors import DataError
from drivetrain.job.text import TextJob


class TextSplit:
    """Tokenized texts in memory."""

    masked: ClassVar = True

    def __init__(self, part: TextPart, tokens: Ragged, pad: int, types: Ragged | None = None) -> None:
        self.part, self.tokens, self.pad, self.types = part, tokens, pad, types
        self.targets: Targets = {name: torch.from_numpy(class_indices) for name, class_indices in part.classes.items()}

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """Number of tokens of each text."""
        return self.tokens.lengths

    def gather(self, ids: Ids) -> Inputs:
        """Token ids, token types if the network has them, and attention mask; all (N, longest of these) int64."""
        filled, mask = self.tokens.padded(ids, self.pad)
        types = () if self.types is None else (torch.from_numpy(self.types.padded(ids, 0)[0]),)
        return torch.from_numpy(filled), *types, torch.from_numpy(mask)

    def contents(self) -> Contents:
        """A digest of each row's texts."""
        return self.part.contents()

    def change_arrays(self, change: Callable[[Any], Any]) -> None:
        """Replace the arrays in memory."""
        self.tokens = self.tokens.changed(change)
        self.types = None if self.types is None else self.types.changed(change)
        self.part.source.texts = tuple(map(change, self.part.source.texts))
        self.targets = {name: change(values) for name, values in self.targets.items()}

    def title(self, index: int) -> str:
        """Row and first words of one text."""
        return self.part.title(index)


def load(job: TextJob, recorded: InputRecord | None = None, files: CsvFiles | None = None) -> Dataset:
    """Read, check and tokenize the texts of a job, with the tokenizer in `recorded` or a new one.

    Raises:
        DataError: if they cannot be used.
        SpecError: if the job's network does not fit them.
    """
    files = files or csv_dialect.of_job(job.data.csv.declared(), {}, job.data.missing)
    train, validation_part, heads, marks, notes = text_split.read(job, files, recorded)
    columns = train.texts, validation_part.texts
    text_tokenizer, limits, source = job_tokenizer.choose(job, columns[0], recorded)
    encoded = [text_tokenizer.encode(texts) for texts in columns]
    typed, side = limits.typed(encoded[0]), job.data.truncation
    if recorded and recorded.same_data:
        longest, reasons = recorded.preprocessing["max_length"], list[str]()
    else:
        longest, reasons = job_tokenizer.length(job, encoded[0].lengths, limits.tokens)
    splits = [
        TextSplit(
            part, tokens.sequences(longest, side), text_tokenizer.pad, tokens.types(longest, side) if typed else None
        )
        for part, tokens in zip((train, validation_part), encoded, strict=True)
    ]
    preprocessing = (
        job_tokenizer.store_preprocessing(job, heads, text_tokenizer, longest, typed, limits.pooling) | marks
    )
    padding = max_length.padding(splits[0].lengths, longest, job.train.batch, job.train.seed)
    notes = [
        f"{len(train):,} training and {len(validation_part):,} validation texts",
        *notes,
        *source,
        *reasons,
        *_unknown(text_tokenizer, splits[1].tokens),
        *job_tokenizer.note_watched(job),
        Detail(padding.note()),
    ]
    return Dataset(
        splits[0], splits[1], heads, preprocessing, mixable=False, notes=notes, facts={"padding": asdict(padding)}
    )


def _unknown(text_tokenizer: Tokenizer, tokens: Ragged) -> list[str]:
    """A note on validation tokens that are not in the vocabulary."""
    share = float((tokens.flat == text_tokenizer.unknown).mean()) if text_tokenizer.unknown is not None else 0.0
    return [f"{share:.2%} of the validation tokens are not in the vocabulary"] if share > 0 else []


def read(
    paths: Sequence[Path],
    preprocessing: Mapping[str, Any],
    heads: Mapping[str, Head],
    files: CsvFiles | None = None,
    *,
    labelled: bool,
    budget: float = 1.0,
) -> NewSamples:
    """Read new texts, preprocessed exactly as the validation texts were.

    Args:
        paths: .csv, .tsv, .jsonl or .parquet files.
        preprocessing: as `load` stored it in the dataset.
        heads: the outputs of the model, by name.
        files: how CSV files are written; what is detected in these files is added to it.
        labelled: whether to read labels.
        budget: largest share of samples that may be unusable.

    Raises:
        DataError: if no text can be used, or a label is not among the classes.
    """
    files = files or csv_dialect.of_model(preprocessing, {})
    columns = preprocessing["labels"].values() if labelled else ()
    source = corpus.join(
        [
            corpus.read(path, "data", text_columns(preprocessing), dict.fromkeys(columns, "data"), "data", files)
            for path in paths
        ]
    )
    notes = bad_samples.check(source.bad, len(source) + len(source.bad), budget, "data")
    if not len(source):
        raise DataError("\n    ".join(notes), "at least one row with a text", "check how the file was written")
    text_tokenizer = tokenizer.from_json(preprocessing["tokenizer"])
    part = text_split.whole(source, text_split.indices(source, heads) if labelled else {})
    notes += text_split.count_missing(part.classes)
    encoded = text_tokenizer.encode(part.texts)
    longest, side = preprocessing["max_length"], preprocessing.get("truncation", "right")
    types = encoded.types(longest, side) if preprocessing.get("token_types") else None
    notes += max_length.note_truncated(encoded.lengths, longest, side)
    split = TextSplit(part, encoded.sequences(longest, side), text_tokenizer.pad, types)
    return NewSamples(split, as_it_is, notes, source.rows if len(paths) == 1 else None)


def text_columns(preprocessing: Mapping[str, Any]) -> list[str]:
    """The text columns of a model; models with a single one store its name alone."""
    names = preprocessing["text"]
    return [names] if isinstance(names, str) else list(names)
