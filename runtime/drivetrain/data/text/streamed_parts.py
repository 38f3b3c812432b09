"""The texts of a text job in shards: labels are read before the training, texts are tokenized during it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow
import torch
from pyarrow import concat_tables

from drivetrain.data import stateless_random
from drivetrain.data.dataset import Dataset, InputRecord, Inputs, Targets
from drivetrain.data.source import check_bad_samples
from drivetrain.data.stateless_random import Ids
from drivetrain.data.streaming import index as indices
from drivetrain.data.streaming import open_stream
from drivetrain.data.streaming.cache import ShardCache
from drivetrain.data.streaming.open_stream import ShardParts, ShardRows
from drivetrain.data.streaming.reader import ShardReader
from drivetrain.data.streaming.shard import ShardStore
from drivetrain.data.text import corpus, text_shards
from drivetrain.data.text import split as text_split
from drivetrain.data.text.corpus import Corpus
from drivetrain.data.text.encoded import Encoded, pad_inputs
from drivetrain.data.text.job_tokenizer import TextEncoding
from drivetrain.data.text.split import Heads
from drivetrain.data.text.text_shards import TokenRows
from drivetrain.errors import DataError
from drivetrain.job.text import TextJob

TITLE_CHARACTERS = 80
"""Characters of a text that its title shows."""
MAX_SAMPLED_TEXTS = 100_000
"""Largest number of texts that give the vocabulary and the largest length."""


@dataclass
class StreamedTexts:
    """Rows of remote shards, tokenized when their shard is fetched."""

    masked: ClassVar = True
    """The last input is a mask of real tokens (protocol `Masked`)."""
    reader: ShardReader
    rows: Ids
    """Rows of the index of the shards."""
    targets: Targets
    lengths: npt.NDArray[np.int64]
    """Tokens of each text, estimated from its bytes; at most `max_length`."""

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def token_rows(self) -> TokenRows:
        """The form in which the cache stores the texts."""
        assert isinstance(self.reader.rows, TokenRows)
        return self.reader.rows

    def gather(self, ids: Ids) -> Inputs:
        """Token ids, token types if the network has them, and attention mask, as from `encoded.pad_inputs`.

        Raises:
            DataError: if a shard has changed.
            StorageError: if a shard cannot be fetched.
        """
        tokens, *types = self.token_rows.to_ragged(self.reader.read(self.rows[ids]))
        return pad_inputs(tokens, types, np.arange(len(ids), dtype=np.int64), self.token_rows.encoding.tokenizer.pad)

    def title(self, index: int) -> str:
        """Shard, number and first words of a text, as the tokenizer reads it."""
        row = self.rows[index : index + 1]
        tokens = self.token_rows.to_ragged(self.reader.read(row))[0]
        text = self.token_rows.encoding.tokenizer.inner.decode(tokens.flat.tolist())
        ellipsis = "…" if len(text) > TITLE_CHARACTERS else ""
        return f"{self.reader.index.title(int(row[0]))}: {text[:TITLE_CHARACTERS]}{ellipsis}"

    def fetch_ahead(self, groups: Sequence[Ids]) -> AbstractContextManager[Callable[[int], None]]:
        """A context in which the shards of the batches are fetched ahead (protocol `FetchesAhead`)."""
        return open_stream.fetch_groups_ahead(self.reader, [self.rows[ids] for ids in groups])


@dataclass(kw_only=True)
class _Source(ShardRows):
    """The shards of texts at one address."""

    store: ShardStore
    corpus: Corpus
    """The labels of the usable rows, without their texts."""


@dataclass
class StreamedParts(ShardParts[_Source]):
    """The streamed texts of a job, divided into training and validation; shards are divided as they are."""

    job: TextJob
    cache: ShardCache
    heads: Heads
    notes: list[str]
    """Notes on the heads."""
    sample_rows: Ids = field(default_factory=lambda: np.zeros(0, np.int64))
    """Rows of the training texts that decide vocabulary and lengths."""
    stored: ClassVar[dict[str, int]] = {}

    def read_sample(self) -> list[pyarrow.ChunkedArray]:
        """Read the text columns of some of the training texts, from a few shards."""
        train, train_rows = self.train, self.train_rows
        shard_numbers = train.index.shard_of(train_rows)
        read_texts = partial(text_shards.read_all_texts, names=self.job.data.text, key=train.key)
        random = stateless_random.make_generator(self.job.train.seed, "statistics")
        tables, rows, count = [], [], 0
        for number in open_stream.choose_shards(train.index, train_rows, random).tolist():
            shard_rows = train_rows[shard_numbers == number][: MAX_SAMPLED_TEXTS - count]
            table = indices.read_shard(train.store, self.cache, read_texts, train.index.shards[number])
            tables.append(table.take(shard_rows - train.index.starts[number]))
            rows.append(shard_rows)
            count += len(shard_rows)
            if count == MAX_SAMPLED_TEXTS:
                break
        self.sample_rows = np.concatenate(rows)
        columns: list[pyarrow.ChunkedArray] = concat_tables(tables).columns
        return columns

    def title_sample(self, index: int) -> str:
        """Return shard and number of a text of the sample."""
        return self.train.index.title(int(self.sample_rows[index]))

    def build_splits(
        self, encoding: TextEncoding, encoded: Encoded, preprocessing: Mapping[str, Any]
    ) -> tuple[StreamedTexts, StreamedTexts]:
        """The splits for training and validation, whose texts are tokenized while the run trains; `encoded` is the sample.

        Raises:
            DataError: if a label is not among the classes, or no text of a split has one.
        """
        # The cache stores rows of tokens under this name, so that jobs that tokenize alike share them.
        cache_name = text_shards.describe(self.job.data.text, preprocessing)
        special_count = encoded.template.count
        byte_count = int(text_shards.read_sizes(self.train.index, self.sample_rows).sum())
        # Most texts are never tokenized before the run needs them: their bytes are known from the index.
        tokens_per_byte = int((encoded.lengths - special_count).sum()) / max(1, byte_count)

        def open_split(source: _Source, rows: Ids) -> StreamedTexts:
            token_rows = TokenRows(self.job.data.text, encoding, source.key, cache_name)
            reader = ShardReader(source.store, source.index, self.cache, token_rows)
            positions = np.searchsorted(source.rows, rows)
            classes = text_split.index_classes(source.corpus, self.heads)
            targets = {name: torch.from_numpy(class_indices[positions]) for name, class_indices in classes.items()}
            tokens = np.ceil(text_shards.read_sizes(source.index, rows) * tokens_per_byte).astype(np.int64)
            return StreamedTexts(reader, rows, targets, np.minimum(tokens + special_count, encoding.longest))

        splits = open_split(self.train, self.train_rows), open_split(self.validation, self.validation_rows)
        self.heads, label_notes = text_split.mark_heads(self.heads, splits[0].targets, splits[1].targets)
        self.notes = [*self.notes, *label_notes]
        return splits

    def complete(self, dataset: Dataset) -> Dataset:
        """The dataset with what streamed samples have."""
        splits = dataset.train, dataset.validation
        shared_count = text_shards.count_shared(
            self.train.index, self.train_rows, self.validation.index, self.validation_rows
        )
        dataset.notes += [
            *self.list_notes(),
            *self.notes,
            *(note for head in self.heads.values() for note in open_stream.unseen_notes(head, splits, "texts")),
            *text_split.note_shared_texts(shared_count, len(self.validation_rows)),
        ]
        readers = [split.reader for split in splits if isinstance(split, StreamedTexts)]
        strata = text_split.number_strata({name: values.numpy() for name, values in dataset.train.targets.items()})
        dataset = self.add_stream(dataset, readers, strata)
        dataset.notes.append(f"vocabulary and lengths are those of {len(self.sample_rows):,} training texts")
        return dataset


def read(job: TextJob, recorded: InputRecord | None = None) -> StreamedParts:
    """Index the shards of a job, and divide them; raises DataError if the shards cannot be used."""
    assert job.data.stream is not None
    cache = open_stream.open_cache(job.data.stream)
    shards = open_stream.divide(job, lambda address, key, train: _index_source(job, address, key, cache))
    return StreamedParts(*shards, job, cache, *text_split.find_heads(job, shards[0].corpus, recorded))


def _index_source(job: TextJob, address: str, key: str, cache: ShardCache) -> _Source:
    """Index the shards of an address that the spec key `key` names; leave out rows without a text or without any label."""
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
    filled_parts = {" and ".join(job.data.text): index.rows[text_shards.SIZE].to_numpy() != 0}
    # A row with a label for at least one of the heads is used: it trains the heads that it has labels for.
    has_label = np.logical_or.reduce([index.rows[name].is_valid().to_numpy() for name in columns])
    filled_parts[" and ".join(columns)] = has_label
    bad, is_usable = corpus.list_bad_rows(filled_parts, index.title)
    notes = check_bad_samples(bad, len(index.rows), job.data.bad_samples, key)
    if not is_usable.any():
        raise DataError(
            f"{key}: {address} has no rows that can be used", "at least one text with its labels", "add some"
        )
    rows = np.flatnonzero(is_usable).astype(np.int64)
    usable_rows = Corpus(
        key=key,
        paths=[Path(address)],
        starts=[0],
        # The texts stay in their shards until the run needs them.
        texts=(),
        labels={name: index.rows[name].filter(is_usable).to_pylist() for name in columns},
        rows=rows + 1,
        bad=bad,
    )
    return _Source(key=key, store=store, index=index, rows=rows, corpus=usable_rows, notes=notes)
