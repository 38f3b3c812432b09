"""What tasks do alike with streamed data: divide the rows of shards, read some of them, and note what they cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

import numpy as np

from drivetrain.data.dataset import Dataset
from drivetrain.data.partition import Parts
from drivetrain.data.stateless_random import Ids
from drivetrain.data.streaming import open_stream
from drivetrain.data.streaming.index import Index
from drivetrain.data.streaming.order import StreamOrder
from drivetrain.data.streaming.reader import ShardReader
from drivetrain.job.images import ImageJob
from drivetrain.job.text import TextJob

MAX_SAMPLED_SHARDS = 8
"""Largest number of shards whose samples give the preprocessing."""


class ShardRows(Protocol):
    """The shards of one address, and which of their rows can be used."""

    key: str
    """The spec key that names the address."""
    notes: list[str]
    """On the rows that cannot be used."""
    index: Index
    """The rows of all shards."""
    rows: Ids
    """Rows of the index that can be used, ascending."""


Source = TypeVar("Source", bound=ShardRows)


@dataclass
class ShardParts(Parts[Source]):
    """The rows of shards for training and for validation."""

    job: ImageJob | TextJob

    def list_notes(self) -> list[str]:
        """Notes on the shards, and on the rows that cannot be used."""
        return [
            note
            for source in self.sources
            for note in (open_stream.note_indexed(source.key, source.index), *source.notes)
        ]

    def add_stream(self, dataset: Dataset, readers: Sequence[ShardReader], strata: Ids | None) -> Dataset:
        """The dataset with what streamed samples have: their order, facts and notes on it, and records of the shards.

        Args:
            dataset: of these rows.
            readers: of training and validation.
            strata: the class of each training row; None without classes.

        Raises:
            SpecError: if the cache is too small for the order.
        """
        stream, sources = self.job.data.stream, self.sources
        assert stream is not None
        counts = np.bincount(self.train.index.shard_of(self.train_rows))
        seed, batch = self.job.train.seed, self.job.train.batch
        order = StreamOrder(counts[counts > 0].tolist(), seed, stream.streams, stream.window, batch)
        shuffle_notes = open_stream.shuffle_notes(order, strata)
        facts = {"shards": len(self.train.index.shards), "streams": order.streams, "window": order.window}
        return replace(
            dataset,
            decoded=False,
            order=order,
            notes=[*dataset.notes, *shuffle_notes, *open_stream.check_cache(self.job, stream, readers[0])],
            facts={**dataset.facts, "stream": facts},
            fetched=readers[0].cache.counts if any(reader.is_remote() for reader in readers) else None,
            shards={source.key: source.index.recorded() for source in sources},
            content=lambda: {source.key: source.index.digest() for source in sources},
        )


def divide(
    job: ImageJob | TextJob, read: Callable[[str, str, Source | None], Source]
) -> tuple[Source, Ids, Source, Ids]:
    """Divide the rows of the shards of a job; held-out rows are those of whole shards.

    Args:
        job: a job with `data.stream`.
        read: indexes the shards at an address, of which it gets the spec key and, for validation, the training shards.

    Returns:
        The first fields of `Parts`.

    Raises:
        DataError: if the shards cannot be used, or there is a single one to hold out of.
    """
    train = read(job.data.train, "data.train", None)
    if isinstance(job.data.validation, str):
        validation = read(job.data.validation, "data.validation", train)
        return train, train.rows, validation, validation.rows
    train_rows, validation_rows = open_stream.hold_out(
        train.index, train.rows, job.data.validation, job.train.seed, train.key
    )
    return train, train_rows, train, validation_rows


def choose_shards(index: Index, rows: Ids, random: np.random.Generator) -> Ids:
    """At most MAX_SAMPLED_SHARDS of the shards that these rows are in, in random order."""
    used_shards = np.unique(index.shard_of(rows))
    return np.asarray(used_shards[random.permutation(len(used_shards))[:MAX_SAMPLED_SHARDS]], np.int64)
