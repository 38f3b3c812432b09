"""Loads the data of a text-classification job into memory; each text is tokenized once, before the training."""

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
from drivetrain.data.dataset import Dataset, Head, InputRecord, Inputs, NewSamples, Targets, keep_unchanged
from drivetrain.data.formats import csv_dialect
from drivetrain.data.formats.csv_dialect import CsvFiles
from drivetrain.data.stateless_random import Ids
from drivetrain.data.text import corpus, job_tokenizer, max_length, tokenizer
from drivetrain.data.text import split as text_split
from drivetrain.data.text.encoded import Ragged
from drivetrain.data.text.split import TextPart
from drivetrain.data.text.tokenizer import Tokenizer
from drivetrain.errors import DataError
from drivetrain.job.text import TextJob
from drivetrain.system.console import Detail


class TextSplit:
    """A split of tokenized texts in memory."""

    masked: ClassVar = True
    """The last input is a mask of real tokens (protocol `Masked`)."""

    def __init__(self, part: TextPart, tokens: Ragged, pad: int, types: Ragged | None = None) -> None:
        self.part = part
        self.tokens = tokens
        self.pad = pad
        self.types = types
        self.targets: Targets = {name: torch.from_numpy(class_indices) for name, class_indices in part.classes.items()}

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """Number of tokens of each text."""
        return self.tokens.lengths

    def gather(self, ids: Ids) -> Inputs:
        """Token ids, token types if the network has them, and attention mask; all (N, tokens) int64: N texts, padded to
        the longest of them.
        """
        padded_tokens, mask = self.tokens.pad(ids, self.pad)
        types = () if self.types is None else (torch.from_numpy(self.types.pad(ids, 0)[0]),)
        return torch.from_numpy(padded_tokens), *types, torch.from_numpy(mask)

    def contents(self) -> Contents:
        """A digest of each row's texts."""
        return self.part.contents()

    def change_arrays(self, change: Callable[[Any], Any]) -> None:
        """Put `change(array)` in place of every array in memory, so that processes can share one copy."""
        self.tokens = self.tokens.map_arrays(change)
        self.types = None if self.types is None else self.types.map_arrays(change)
        self.part.source.texts = tuple(map(change, self.part.source.texts))
        self.targets = {name: change(values) for name, values in self.targets.items()}

    def title(self, index: int) -> str:
        """Row and first words of one text."""
        return self.part.title(index)


def load(job: TextJob, recorded: InputRecord | None = None, files: CsvFiles | None = None) -> Dataset:
    """Read, check and tokenize the texts of a job, with the tokenizer in `recorded` or a new one.

    Raises:
        DataError: if the texts cannot be used.
        SpecError: if the job's network does not fit the texts.
    """
    files = files or csv_dialect.of_job(job.data.csv.list_settings(), {}, job.data.missing)
    train_part, validation_part, heads, stored_division, notes = text_split.read_and_split(job, files, recorded)
    text_columns_of_parts = train_part.texts, validation_part.texts
    text_tokenizer, limits, tokenizer_notes = job_tokenizer.choose_tokenizer(job, text_columns_of_parts[0], recorded)
    encoded_parts = [text_tokenizer.encode(texts) for texts in text_columns_of_parts]
    typed = limits.are_types_used(encoded_parts[0])
    side = job.data.truncation
    if recorded and recorded.same_data:
        # A resumed run goes on with the length that it began with.
        longest = recorded.preprocessing["max_length"]
        length_notes: list[str] = []
    else:
        longest, length_notes = job_tokenizer.choose_length(job, encoded_parts[0].lengths, limits.tokens)
    splits = [
        TextSplit(
            part, encoded.sequences(longest, side), text_tokenizer.pad, encoded.types(longest, side) if typed else None
        )
        for part, encoded in zip((train_part, validation_part), encoded_parts, strict=True)
    ]
    preprocessing = job_tokenizer.build_preprocessing(job, heads, text_tokenizer, longest, typed, limits.pooling)
    preprocessing |= stored_division
    padding = max_length.padding(splits[0].lengths, longest, job.train.batch, job.train.seed)
    notes = [
        f"{len(train_part):,} training and {len(validation_part):,} validation texts",
        *notes,
        *tokenizer_notes,
        *length_notes,
        *_note_unknown(text_tokenizer, splits[1].tokens),
        *job_tokenizer.note_watched(job),
        Detail(padding.note()),
    ]
    return Dataset(
        splits[0], splits[1], heads, preprocessing, mixable=False, notes=notes, facts={"padding": asdict(padding)}
    )


def _note_unknown(text_tokenizer: Tokenizer, tokens: Ragged) -> list[str]:
    """A note on the share of validation tokens that stand for text outside of the vocabulary, if there are any."""
    unknown_token = text_tokenizer.unknown_token
    share = float((tokens.flat == unknown_token).mean()) if unknown_token is not None else 0.0
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
    part = text_split.take_all_rows(source, text_split.index_classes(source, heads) if labelled else {})
    notes += text_split.count_missing(part.classes)
    encoded = text_tokenizer.encode(part.texts)
    longest = preprocessing["max_length"]
    side = preprocessing.get("truncation", "right")
    types = encoded.types(longest, side) if preprocessing.get("token_types") else None
    notes += max_length.note_truncated(encoded.lengths, longest, side)
    split = TextSplit(part, encoded.sequences(longest, side), text_tokenizer.pad, types)
    # Row numbers say nothing about which of several files a row is from.
    return NewSamples(split, keep_unchanged, notes, source.rows if len(paths) == 1 else None)


def text_columns(preprocessing: Mapping[str, Any]) -> list[str]:
    """The text columns of a model; models with a single one store its name alone."""
    names = preprocessing["text"]
    return [names] if isinstance(names, str) else list(names)
