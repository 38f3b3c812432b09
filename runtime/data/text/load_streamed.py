"""Loads the data of a text job from shards: labels are read at once, texts are tokenized while the run trains."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from runtime.data import bad_samples, labels, stateless_random
from runtime.data.bad_samples import BadSample
from runtime.data.dataset import NO_LABEL, Dataset, InputRecord
from runtime.data.stateless_random import Ids
from runtime.data.streaming import index as indices
from runtime.data.streaming import open_stream
from runtime.data.streaming.cache import ShardCache
from runtime.data.streaming.index import Index
from runtime.data.streaming.reader import ShardReader
from runtime.data.streaming.shard import ShardStore
from runtime.data.text import job_tokenizer, max_length, shard_texts, text_shards
from runtime.data.text import split as text_split
from runtime.data.text.corpus import Corpus
from runtime.data.text.encoded import Encoded
from runtime.data.text.split import Classes
from runtime.data.text.streamed_texts import StreamedTexts
from runtime.data.text.text_shards import TokenRows
from runtime.errors import DataError
from runtime.job.text import TextJob

if TYPE_CHECKING:
    import pyarrow

SAMPLED = 8
"""Largest number of shards from which the vocabulary and the length of the texts are taken."""
TEXTS = 100_000
"""Texts of them that are enough."""


@dataclass
class _Source:
    """All texts of one address."""

    store: ShardStore
    index: Index
    corpus: Corpus
    """The labels of the rows that can be used, without their texts."""
    notes: list[str] = field(default_factory=list)

    @property
    def rows(self) -> Ids:
        """Rows of the index that can be used, ascending."""
        return self.corpus.rows - 1

    def split(self, reader: ShardReader, rows: Ids, classes: Classes, lengths: npt.NDArray[np.int64]) -> StreamedTexts:
        """Some rows with their targets."""
        places = np.searchsorted(self.rows, rows)
        targets = {name: torch.from_numpy(found[places]) for name, found in classes.items()}
        return StreamedTexts(reader, rows, targets, lengths)


def load(job: TextJob, settled: InputRecord | None = None) -> Dataset:
    """Index the shards of a job, and take the vocabulary and the largest length from some of them.

    Args:
        job: has `data.stream`.
        settled: preprocessing and heads of the run, if it read this data before, or of an earlier one.

    Raises:
        DataError: if the shards cannot be used.
        SpecError: if the network does not fit them, or the cache is too small for the order.
    """
    stream = job.data.stream
    assert stream is not None
    cache = open_stream.open_cache(stream)
    train, kept, own, held = _divided(job, cache)
    heads, notes = text_split.heads_of(job, train.corpus)
    heads = dict(settled.heads if settled and settled.same_data else heads)
    texts, rows = _sample(job, train, kept, cache)
    words, limits, source = job_tokenizer.choose(job, texts, settled)
    encoded = words.encode(texts)
    typed, side = limits.typed(encoded), job.data.truncation
    if settled and settled.same_data:
        longest, why = settled.preprocessing["max_length"], list[str]()
    else:
        longest, why = job_tokenizer.length(job, encoded.lengths, limits.tokens)
    preprocessing = job_tokenizer.stored(job, heads, words, longest, typed)
    described = text_shards.described(job.data.text, preprocessing)
    estimate = _estimate(encoded, _bytes(train.index, rows), longest)

    def split(source: _Source, chosen: Ids) -> StreamedTexts:
        kind = TokenRows(job.data.text, words, longest, side, typed, source.corpus.key, described)
        reader = ShardReader(source.store, source.index, cache, kind)
        classes = text_split.indices(source.corpus, heads)
        return source.split(reader, chosen, classes, estimate(_bytes(source.index, chosen)))

    splits = split(train, kept), split(own, held)
    heads, lacking = text_split.mark_heads(heads, {"training": splits[0].targets, "validation": splits[1].targets})
    order = open_stream.order_of(job, stream, train.index, kept)
    sources = [train] if own is train else [train, own]
    padding = max_length.padding(splits[0].lengths, longest, job.train.batch, job.train.seed)
    readers = [split.reader for split in splits]
    return Dataset(
        *splits,
        heads=heads,
        preprocessing=preprocessing,
        mixable=False,
        decoded=False,
        order=order,
        notes=[
            f"{len(kept):,} training and {len(held):,} validation texts",
            *(
                note
                for each in sources
                for note in (open_stream.indexed_note(each.corpus.key, each.index), *each.notes)
            ),
            *notes,
            *lacking,
            *(note for head in heads.values() for note in open_stream.unseen_notes(head, splits, "texts")),
            *text_shards.shared(train.index, kept, own.index, held),
            *open_stream.shuffle_notes(order, _classes(splits[0], heads)),
            *open_stream.check_cache(job, stream, readers[0]),
            f"vocabulary and lengths are those of {len(rows):,} training texts",
            *source,
            *why,
            *job_tokenizer.watched(job),
            padding.note(),
        ],
        facts={
            "padding": asdict(padding),
            "stream": {"shards": len(train.index.shards), "streams": order.streams, "window": order.window},
        },
        fetched=cache.counts if any(reader.is_remote() for reader in readers) else None,
        shards={each.corpus.key: each.index.recorded() for each in sources},
        content=lambda: {each.corpus.key: each.index.digest() for each in sources},
    )


def _divided(job: TextJob, cache: ShardCache) -> tuple[_Source, Ids, _Source, Ids]:
    """The training texts and their rows, then the validation texts and theirs; both may have one source."""
    train = _read(job, job.data.train, "data.train", cache)
    if isinstance(job.data.validation, str):
        own = _read(job, job.data.validation, "data.validation", cache)
        return train, train.rows, own, own.rows
    kept, held = open_stream.held_out(train.index, train.rows, job.data.validation, job.train.seed, "data.train")
    return train, kept, train, held


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
        BadSample(index.title(row), f"{labels.listed([name for name, none in empty.items() if none[row]])} is empty")
        for row in np.flatnonzero(~good).tolist()
    ]
    notes = bad_samples.check(bad, len(index.rows), job.data.bad_samples, key)
    if not good.any():
        raise DataError(f"{key}: {text} has no rows that can be used", "at least one text with its labels", "add some")
    found = {name: index.rows[name].filter(good).to_pylist() for name in columns}
    return _Source(store, index, Corpus(key, [Path(text)], [0], (), found, np.flatnonzero(good) + 1, bad), notes)


def _sample(job: TextJob, train: _Source, kept: Ids, cache: ShardCache) -> tuple[list[pyarrow.ChunkedArray], Ids]:
    """Some of the training texts, from a few shards: their text columns and their rows."""
    from pyarrow import concat_tables

    shards, look = train.index.shard_of(kept), partial(shard_texts.texts_of, names=job.data.text, key=train.corpus.key)
    used = np.unique(shards)
    random = stateless_random.generator(job.train.seed, "statistics")
    found, rows, count = [], [], 0
    for number in used[random.permutation(len(used))[:SAMPLED]].tolist():
        own = kept[shards == number][: TEXTS - count]
        table = indices.looked(train.store, cache, look, train.index.shards[number])
        found.append(table.take(own - train.index.starts[number]))
        rows.append(own)
        count += len(own)
        if count == TEXTS:
            break
    return concat_tables(found).columns, np.concatenate(rows)


def _bytes(index: Index, rows: Ids) -> npt.NDArray[np.int64]:
    found: npt.NDArray[np.int64] = index.rows[text_shards.SIZE].to_numpy()[rows]
    return found


def _estimate(
    encoded: Encoded, sizes: npt.NDArray[np.int64], longest: int
) -> Callable[[npt.NDArray[np.int64]], npt.NDArray[np.int64]]:
    """Tokens of texts by their bytes, as in these texts; special tokens included, at most `longest`."""
    special = encoded.template.count
    share = float((encoded.lengths - special).sum()) / max(1, int(sizes.sum()))
    return lambda found: np.minimum(np.ceil(found * share).astype(np.int64) + special, longest)


def _classes(split: StreamedTexts, heads: Mapping[str, object]) -> Ids:
    """The classes of the first head."""
    found: Ids = split.targets[next(iter(heads))].numpy()
    return np.where(found == NO_LABEL, found.max() + 1, found)
