"""Loads the data of a text job into memory, tokenized once before the training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from drivetrain.data.dataset import Dataset, Head, InputRecord, NewSamples, keep_unchanged
from drivetrain.data.formats.csv_dialect import CsvFiles
from drivetrain.data.source import Source
from drivetrain.data.text import corpus, job_tokenizer, letter_case, unknown_words
from drivetrain.data.text import split as text_split
from drivetrain.data.text.job_tokenizer import TextEncoding
from drivetrain.errors import DataError
from drivetrain.job.text import TextJob
from drivetrain.system.console import Detail


def load(job: TextJob, recorded: InputRecord | None, files: CsvFiles) -> Dataset:
    """Read and check the texts of a job, and choose the tokenizer and the largest length.

    Raises:
        DataError: if the texts cannot be used.
        SpecError: if the job's network does not fit the texts.
    """
    parts = text_split.read(job, files, recorded)
    texts = parts.train.texts
    encoding, encoded, encoding_notes = job_tokenizer.choose(job, texts, recorded)
    unknown = unknown_words.measure(encoding.tokenizer, encoded)
    encoding_notes += unknown_words.describe(unknown, encoding.tokenizer, texts, "training texts", parts.train.title)
    if unknown.share > unknown_words.MAX_SHARE:
        raise job_tokenizer.unknown_words_error(job, encoding_notes[-1])
    encoding_notes += letter_case.note_lost_letters(job, parts.train, parts.heads, encoded, encoding.tokenizer)
    preprocessing = job_tokenizer.build_preprocessing(job, parts.heads, encoding) | parts.stored
    train, validation = parts.build_splits(encoding, encoded)
    padding = job_tokenizer.padding(train.lengths, encoding.longest, job.train.batch, job.train.seed)
    dataset = Dataset(
        train,
        validation,
        parts.heads,
        preprocessing,
        mixable=False,
        notes=[f"{len(train):,} training and {len(validation):,} validation texts", *parts.notes, *encoding_notes],
        facts={"padding": asdict(padding), "unknown_words": {"share": unknown.share}},
    )
    if not job.checkpoint.best and len(job.data.labels) > 1:
        dataset.notes.append(f"the best checkpoint is chosen by {job.best()}, the first column with the largest weight")
    dataset.notes.append(Detail(padding.note()))
    return dataset


def read(sources: Sequence[Source], preprocessing: Mapping[str, Any], heads: Mapping[str, Head]) -> NewSamples:
    """Read new texts of .csv, .tsv, .jsonl or .parquet files, as in training; raises as `load_data.load_new` does."""
    first, texts = sources[0], text_columns(preprocessing)
    labels = dict.fromkeys(preprocessing["labels"].values() if first.labelled else (), first.key)
    rows = corpus.join([corpus.read(one.path, one.key, texts, labels, one.key, one.files) for one in sources])
    notes = first.check_bad(rows.bad, len(rows) + len(rows.bad))
    if not len(rows):
        raise DataError("\n    ".join(notes), "at least one row with a text", "check how the file was written")
    encoding = TextEncoding.of_model(preprocessing)
    part = text_split.take_rows(rows, text_split.index_classes(rows, heads) if first.labelled else {})
    notes += text_split.note_missing(part.classes)
    encoded = encoding.tokenizer.encode(part.texts)
    notes += job_tokenizer.note_truncated(encoded.lengths, encoding.longest, encoding.side)
    unknown = unknown_words.measure(encoding.tokenizer, encoded)
    notes += unknown_words.describe(unknown, encoding.tokenizer, part.texts, "texts", part.title)
    split = text_split.build_split(part, encoded, encoding)
    # With several files, a row number alone does not identify a row.
    return NewSamples(split, keep_unchanged, notes, rows.rows if len(sources) == 1 else None)


def text_columns(preprocessing: Mapping[str, Any]) -> list[str]:
    """Return the text columns of a model; models with a single text column store only its name."""
    names = preprocessing["text"]
    return [names] if isinstance(names, str) else list(names)
