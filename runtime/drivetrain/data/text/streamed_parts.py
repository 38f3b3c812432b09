"""Loads the data of a text job from shards: labels are read before the training, texts are tokenized during it."""

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
from drivetrain.system.console import Detail

if TYPE_CHECKING:
    import pyarrow

MAX_SAMPLED_SHARDS = 8
"""Largest number of shards whose texts give the vocabulary and the largest length."""
MAX_SAMPLED_TEXTS = 100_000
"""Largest number of texts taken from these shards."""


@dataclass
class _Source:
    """The shards of one address, and which of their rows can be used."""

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

    def build_split(
        self, reader: ShardReader, rows: Ids, classes: Classes, lengths: npt.NDArray[np.int64]
    ) -> StreamedTexts:
        """A split of some rows of the index, with their targets; `classes` has those of all usable rows."""
        positions = np.searchsorted(self.rows, rows)
        targets = {name: torch.from_numpy(class_indices[positions]) for name, class_indices in classes.items()}
        return StreamedTexts(reader, rows, targets, lengths)


@dataclass(frozen=True)
class _Encoding:
    """How texts become tokens, and how long they are: chosen from a sample of the training texts."""

    tokenizer: Tokenizer
    longest: int
    """Largest number of tokens of a text."""
    typed: bool
    """Whether the network gets token types."""
    special_count: int
    """Number of special tokens of each text."""
    tokens_per_byte: float
    """Mean number of tokens for a byte of text, without special tokens."""
    pooling: str
    """How the network's folder says that a text's vector is made; empty if it does not say."""
    notes: list[str]

    def estimate_lengths(self, index: Index, rows: Ids) -> npt.NDArray[np.int64]:
        """Estimate the tokens of some rows from their bytes; special tokens included, at most `longest`."""
        tokens = np.ceil(_read_sizes(index, rows) * self.tokens_per_byte).astype(np.int64)
        lengths: npt.NDArray[np.int64] = np.minimum(tokens + self.special_count, self.longest)
        return lengths


def load(job: TextJob, recorded: InputRecord | None = None) -> Dataset:
    """Index the shards of a job, and choose the vocabulary and the largest length from texts of some of them.

    Args:
        job: a job with `data.stream`.
        recorded: preprocessing and heads of the run, if it read this data before, or of an earlier run.

    Raises:
        DataError: if the shards cannot be used.
        SpecError: if the network does not fit them, or the cache is too small for the order.
    """
    stream = job.data.stream
    assert stream is not None
    cache = open_stream.open_cache(stream)
    train, train_rows, validation_source, validation_rows = _read_and_divide(job, cache)
    heads, head_notes = text_split.find_heads(job, train.corpus)
    # A resumed run keeps its heads, so that its classes keep their numbers.
    heads = dict(recorded.heads if recorded and recorded.same_data else heads)
    encoding = _choose_encoding(job, train, train_rows, recorded, cache)
    preprocessing = job_tokenizer.build_preprocessing(
        job, heads, encoding.tokenizer, encoding.longest, encoding.typed, encoding.pooling
    )
    # The cache stores rows of tokens under this name, so that jobs that tokenize alike share them.
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
            *open_stream.shuffle_notes(order, _number_strata(splits[0], heads)),
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
    texts, rows = _sample_texts(job, train, train_rows, cache)
    tokenizer, limits, tokenizer_notes = job_tokenizer.choose_tokenizer(job, texts, recorded)
    encoded = tokenizer.encode(texts)
    if recorded and recorded.same_data:
        longest = recorded.preprocessing["max_length"]
        length_notes: list[str] = []
    else:
        longest, length_notes = job_tokenizer.choose_length(job, encoded.lengths, limits.tokens)
    special_count = encoded.template.count
    token_count = int((encoded.lengths - special_count).sum())
    byte_count = int(_read_sizes(train.index, rows).sum())
    sample_note = f"vocabulary and lengths are those of {len(rows):,} training texts"
    return _Encoding(
        tokenizer,
        longest,
        limits.are_types_used(encoded),
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
    """A split of some rows of a source with their targets; its texts are tokenized while the run trains."""
    token_rows = TokenRows(
        job.data.text,
        encoding.tokenizer,
        encoding.longest,
        job.data.truncation,
        encoding.typed,
        source.corpus.key,
        cache_name,
    )
    reader = ShardReader(source.store, source.index, cache, token_rows)
    classes = text_split.index_classes(source.corpus, heads)
    return source.build_split(reader, rows, classes, encoding.estimate_lengths(source.index, rows))


def _read_and_divide(job: TextJob, cache: ShardCache) -> tuple[_Source, Ids, _Source, Ids]:
    """Index the shards and divide their rows into training and validation.

    Returns:
        The source of the training texts, their rows, the source of the validation texts, and their rows. Both have the
        same source if the validation texts are held out of the training shards.
    """
    train = _index_source(job, job.data.train, "data.train", cache)
    if isinstance(job.data.validation, str):
        validation_source = _index_source(job, job.data.validation, "data.validation", cache)
        return train, train.rows, validation_source, validation_source.rows
    train_rows, validation_rows = open_stream.hold_out(
        train.index, train.rows, job.data.validation, job.train.seed, "data.train"
    )
    return train, train_rows, train, validation_rows


def _index_source(job: TextJob, address: str, key: str, cache: ShardCache) -> _Source:
    """Index the shards of an address that the spec key `key` names; leave out rows without a text or without any label.

    Raises:
        DataError: if too many rows cannot be used, or all.
    """
    store = open_stream.open_store(job, address, key)
    columns = list(job.data.labels)
    classes = store.class_names()
    index_shard = partial(text_shards.index_shard, texts=job.data.text, labels=columns, key=key, classes=classes)
    index = indices.read(
        store,
        cache,
        index_shard,
        # What the index depends on: a stored index is used again only if it was built from the same.
        ["composed texts with hashes", *job.data.text, "labels", *columns, *map(str, classes.items())],
    )
    is_empty = {" and ".join(job.data.text): index.rows[text_shards.SIZE].to_numpy() == 0}
    # A row with a label for at least one of the heads is used: it trains the heads that it has labels for.
    has_no_label = np.logical_and.reduce([index.rows[name].is_null().to_numpy() for name in columns])
    is_empty |= {" and ".join(columns): has_no_label}
    is_usable = ~np.logical_or.reduce(list(is_empty.values()))
    bad = [
        BadSample(
            index.title(row),
            f"{labels.list_names([name for name, is_empty_in in is_empty.items() if is_empty_in[row]])} is empty",
        )
        for row in np.flatnonzero(~is_usable).tolist()
    ]
    notes = bad_samples.check(bad, len(index.rows), job.data.bad_samples, key)
    if not is_usable.any():
        raise DataError(
            f"{key}: {address} has no rows that can be used", "at least one text with its labels", "add some"
        )
    labels_by_column = {name: index.rows[name].filter(is_usable).to_pylist() for name in columns}
    usable_rows = Corpus(
        key=key,
        paths=[Path(address)],
        starts=[0],
        # The texts stay in their shards until the run needs them.
        texts=(),
        labels=labels_by_column,
        rows=np.flatnonzero(is_usable) + 1,
        bad=bad,
    )
    return _Source(store, index, usable_rows, notes)


def _sample_texts(
    job: TextJob, train: _Source, train_rows: Ids, cache: ShardCache
) -> tuple[list[pyarrow.ChunkedArray], Ids]:
    """Read some of the training texts, from a few shards.

    Returns:
        Their text columns, and their rows in the index.
    """
    from pyarrow import concat_tables

    shard_numbers = train.index.shard_of(train_rows)
    read_texts = partial(shard_texts.read_all_texts, names=job.data.text, key=train.corpus.key)
    used_shards = np.unique(shard_numbers)
    random = stateless_random.make_generator(job.train.seed, "statistics")
    tables, rows, count = [], [], 0
    for number in used_shards[random.permutation(len(used_shards))[:MAX_SAMPLED_SHARDS]].tolist():
        shard_rows = train_rows[shard_numbers == number][: MAX_SAMPLED_TEXTS - count]
        table = indices.read_shard(train.store, cache, read_texts, train.index.shards[number])
        tables.append(table.take(shard_rows - train.index.starts[number]))
        rows.append(shard_rows)
        count += len(shard_rows)
        if count == MAX_SAMPLED_TEXTS:
            break
    return concat_tables(tables).columns, np.concatenate(rows)


def _read_sizes(index: Index, rows: Ids) -> npt.NDArray[np.int64]:
    """Bytes of the texts of some rows, as the index has them."""
    sizes: npt.NDArray[np.int64] = index.rows[text_shards.SIZE].to_numpy()[rows]
    return sizes


def _number_strata(split: StreamedTexts, heads: Mapping[str, object]) -> Ids:
    """The class of each row in the first head; rows without a label count as one more class."""
    class_indices: Ids = split.targets[next(iter(heads))].numpy()
    return np.where(class_indices == NO_LABEL, class_indices.max() + 1, class_indices)
