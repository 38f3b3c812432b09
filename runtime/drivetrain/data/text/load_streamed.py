"""Loads the data of a text job from shards: labels are read at once, texts are tokenized while the run trains."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from drivetrain.data import bad_samples, labels, stateless_random
from drivetrain.data.bad_samples import BadSample
from drivetrain.data.dataset import NO_LABEL, Dataset, Head, InputRecord
from drivetrain.data.notes import Detail
from drivetrain.data.stateless_random import Ids
from drivetrain.data.streaming import index as indices
from drivetrain.data.streaming import open_stream
from drivetrain.data.streaming.cache import ShardCache
from drivetrain.data.streaming.index import Index
from drivetrain.data.streaming.reader import ShardReader
from drivetrain.data.streaming.shard import ShardStore
from drivetrain.data.text import job_tokenizer, max_length, shard_texts, text_shards
from drivetrain.data.text import split as text_split
from drivetrain.data.text.corpus import Corpus
from drivetrain.data.text.split import Classes
from drivetrain.data.text.streamed_texts import StreamedTexts
from drivetrain.data.text.text_shards import TokenRows
from drivetrain.data.text.tokenizer import Tokenizer
from drivetrain.errors import DataError
from drivetrain.job.text import TextJob

if TYPE_CHECKING:
    import pyarrow

MAX_SAMPLED_SHARDS = 8
"""Shards from which the vocabulary and the length of the texts are taken at most."""
MAX_SAMPLED_TEXTS = 100_000
"""Texts of these shards at most."""


@dataclass
class _Source:
    """All texts of one address."""

    store: ShardStore
    index: Index
    corpus: Corpus
    """The labels of the rows that can be used, without their texts."""
    notes: list[str] = field(default_factory=list)

    def describe(self) -> list[str]:
        """Return notes on the shards and on the rows that cannot be used."""
        return [open_stream.note_indexed(self.corpus.key, self.index), *self.notes]

    @property
    def rows(self) -> Ids:
        """Rows of the index that can be used, ascending."""
        return self.corpus.rows - 1

    def split(self, reader: ShardReader, rows: Ids, classes: Classes, lengths: npt.NDArray[np.int64]) -> StreamedTexts:
        """Some rows with their targets."""
        places = np.searchsorted(self.rows, rows)
        targets = {name: torch.from_numpy(class_indices[places]) for name, class_indices in classes.items()}
        return StreamedTexts(reader, rows, targets, lengths)


@dataclass(frozen=True)
class _Encoding:
    """How texts become tokens, and how many tokens a text has: chosen from a sample of the training texts."""

    tokenizer: Tokenizer
    longest: int
    typed: bool
    """Whether the network gets token types."""
    special_count: int
    """Special tokens of a text."""
    tokens_per_byte: float
    pooling: str
    """As the network's folder says, if it does."""
    notes: list[str]

    def estimate_lengths(self, index: Index, rows: Ids) -> npt.NDArray[np.int64]:
        """Estimate the tokens of some rows from their bytes; special tokens included, at most `longest`."""
        tokens = np.ceil(_read_sizes(index, rows) * self.tokens_per_byte).astype(np.int64)
        lengths: npt.NDArray[np.int64] = np.minimum(tokens + self.special_count, self.longest)
        return lengths


def load(job: TextJob, recorded: InputRecord | None = None) -> Dataset:
    """Index the shards of a job, and take the vocabulary and the largest length from some of them.

    Args:
        job: has `data.stream`.
        recorded: preprocessing and heads of the run, if it read this data before, or of an earlier one.

    Raises:
        DataError: if the shards cannot be used.
        SpecError: if the network does not fit them, or the cache is too small for the order.
    """
    stream = job.data.stream
    assert stream is not None
    cache = open_stream.open_cache(stream)
    train, train_rows, validation_source, validation_rows = _divide(job, cache)
    heads, head_notes = text_split.heads_of(job, train.corpus)
    heads = dict(recorded.heads if recorded and recorded.same_data else heads)
    encoding = _choose_encoding(job, train, train_rows, recorded, cache)
    preprocessing = job_tokenizer.store_preprocessing(
        job, heads, encoding.tokenizer, encoding.longest, encoding.typed, encoding.pooling
    )
    # The cache keeps rows of tokens under this name, so that jobs that tokenize alike share them.
    cache_name = text_shards.describe(job.data.text, preprocessing)
    open_split = partial(_open_split, job, heads, encoding, cache, cache_name)
    splits = open_split(train, train_rows), open_split(validation_source, validation_rows)
    heads, label_notes = text_split.mark_heads(heads, {"training": splits[0].targets, "validation": splits[1].targets})
    order = open_stream.order_of(job, stream, train.index, train_rows)
    sources = [train] if validation_source is train else [train, validation_source]
    padding = max_length.padding(splits[0].lengths, encoding.longest, job.train.batch, job.train.seed)
    return Dataset(
        *splits,
        heads=heads,
        preprocessing=preprocessing,
        mixable=False,
        decoded=False,
        order=order,
        notes=[
            f"{len(train_rows):,} training and {len(validation_rows):,} validation texts",
            *(note for source in sources for note in source.describe()),
            *head_notes,
            *label_notes,
            *(note for head in heads.values() for note in open_stream.unseen_notes(head, splits, "texts")),
            *text_shards.note_shared(train.index, train_rows, validation_source.index, validation_rows),
            *open_stream.shuffle_notes(order, _classes(splits[0], heads)),
            *open_stream.check_cache(job, stream, splits[0].reader),
            *encoding.notes,
            *job_tokenizer.note_watched(job),
            Detail(padding.note()),
        ],
        facts={
            "padding": asdict(padding),
            "stream": {"shards": len(train.index.shards), "streams": order.streams, "window": order.window},
        },
        fetched=cache.counts if any(split.reader.is_remote() for split in splits) else None,
        shards={source.corpus.key: source.index.recorded() for source in sources},
        content=lambda: {source.corpus.key: source.index.digest() for source in sources},
    )


def _choose_encoding(
    job: TextJob, train: _Source, train_rows: Ids, recorded: InputRecord | None, cache: ShardCache
) -> _Encoding:
    """Choose tokenizer and largest length; those of `recorded` if the run read this data before."""
    texts, rows = _sample(job, train, train_rows, cache)
    tokenizer, limits, tokenizer_notes = job_tokenizer.choose(job, texts, recorded)
    encoded = tokenizer.encode(texts)
    if recorded and recorded.same_data:
        longest, length_notes = recorded.preprocessing["max_length"], list[str]()
    else:
        longest, length_notes = job_tokenizer.length(job, encoded.lengths, limits.tokens)
    special_count = encoded.template.count
    token_count, byte_count = int((encoded.lengths - special_count).sum()), int(_read_sizes(train.index, rows).sum())
    sample_note = f"vocabulary and lengths are those of {len(rows):,} training texts"
    return _Encoding(
        tokenizer,
        longest,
        limits.typed(encoded),
        special_count,
        # Most texts are never tokenized before the run needs them: their bytes are known from the index.
        tokens_per_byte=token_count / max(1, byte_count),
        pooling=limits.pooling,
        notes=[sample_note, *tokenizer_notes, *length_notes],
    )


def _open_split(
    job: TextJob,
    heads: Mapping[str, Head],
    encoding: _Encoding,
    cache: ShardCache,
    cache_name: str,
    source: _Source,
    rows: Ids,
) -> StreamedTexts:
    """Return some rows of a source with their targets, to be tokenized while the run trains."""
    kind = TokenRows(
        job.data.text,
        encoding.tokenizer,
        encoding.longest,
        job.data.truncation,
        encoding.typed,
        source.corpus.key,
        cache_name,
    )
    reader = ShardReader(source.store, source.index, cache, kind)
    classes = text_split.indices(source.corpus, heads)
    return source.split(reader, rows, classes, encoding.estimate_lengths(source.index, rows))


def _divide(job: TextJob, cache: ShardCache) -> tuple[_Source, Ids, _Source, Ids]:
    """The training texts and their rows, then the validation texts and theirs; both may have one source."""
    train = _read(job, job.data.train, "data.train", cache)
    if isinstance(job.data.validation, str):
        validation_source = _read(job, job.data.validation, "data.validation", cache)
        return train, train.rows, validation_source, validation_source.rows
    train_rows, validation_rows = open_stream.hold_out(
        train.index, train.rows, job.data.validation, job.train.seed, "data.train"
    )
    return train, train_rows, train, validation_rows


def _read(job: TextJob, text: str, key: str, cache: ShardCache) -> _Source:
    """Index the shards of one address; rows without a text or without any label are left out."""
    store, columns = open_stream.open_store(job, text, key), list(job.data.labels)
    classes = store.class_names()
    look = partial(text_shards.look, texts=job.data.text, labels=columns, key=key, classes=classes)
    index = indices.read(
        store,
        cache,
        look,
        ["composed texts with hashes", *job.data.text, "labels", *columns, *map(str, classes.items())],
    )
    empty = {" and ".join(job.data.text): index.rows[text_shards.SIZE].to_numpy() == 0}
    # A row that has a label for some of the heads trains these.
    empty |= {" and ".join(columns): np.logical_and.reduce([index.rows[name].is_null().to_numpy() for name in columns])}
    good = ~np.logical_or.reduce(list(empty.values()))
    bad = [
        BadSample(
            index.title(row), f"{labels.list_names([name for name, none in empty.items() if none[row]])} is empty"
        )
        for row in np.flatnonzero(~good).tolist()
    ]
    notes = bad_samples.check(bad, len(index.rows), job.data.bad_samples, key)
    if not good.any():
        raise DataError(f"{key}: {text} has no rows that can be used", "at least one text with its labels", "add some")
    texts_by_column = {name: index.rows[name].filter(good).to_pylist() for name in columns}
    return _Source(
        store, index, Corpus(key, [Path(text)], [0], (), texts_by_column, np.flatnonzero(good) + 1, bad), notes
    )


def _sample(job: TextJob, train: _Source, train_rows: Ids, cache: ShardCache) -> tuple[list[pyarrow.ChunkedArray], Ids]:
    """Some of the training texts, from a few shards: their text columns and their rows."""
    from pyarrow import concat_tables

    shards, look = (
        train.index.shard_of(train_rows),
        partial(shard_texts.texts_of, names=job.data.text, key=train.corpus.key),
    )
    used = np.unique(shards)
    random = stateless_random.generator(job.train.seed, "statistics")
    tables, rows, count = [], [], 0
    for number in used[random.permutation(len(used))[:MAX_SAMPLED_SHARDS]].tolist():
        shard_rows = train_rows[shards == number][: MAX_SAMPLED_TEXTS - count]
        table = indices.look_at_shard(train.store, cache, look, train.index.shards[number])
        tables.append(table.take(shard_rows - train.index.starts[number]))
        rows.append(shard_rows)
        count += len(shard_rows)
        if count == MAX_SAMPLED_TEXTS:
            break
    return concat_tables(tables).columns, np.concatenate(rows)


def _read_sizes(index: Index, rows: Ids) -> npt.NDArray[np.int64]:
    """Return the bytes of some texts."""
    sizes: npt.NDArray[np.int64] = index.rows[text_shards.SIZE].to_numpy()[rows]
    return sizes


def _classes(split: StreamedTexts, heads: Mapping[str, object]) -> Ids:
    """The classes of the first head."""
    class_indices: Ids = split.targets[next(iter(heads))].numpy()
    return np.where(class_indices == NO_LABEL, class_indices.max() + 1, class_indices)
