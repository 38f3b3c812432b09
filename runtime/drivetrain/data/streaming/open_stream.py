"""What all streamed tasks share: they open shards and their cache, divide the rows, read some, and note what they cost."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from drivetrain.data import stateless_random
from drivetrain.data.dataset import NO_LABEL, Dataset, Head, Split
from drivetrain.data.loader.batches import StreamOrder
from drivetrain.data.notes import list_names
from drivetrain.data.partition import Parts
from drivetrain.data.stateless_random import Ids
from drivetrain.data.streaming.cache import ShardCache
from drivetrain.data.streaming.fetch_ahead import FetchAhead
from drivetrain.data.streaming.index import Index
from drivetrain.data.streaming.reader import ShardReader
from drivetrain.data.streaming.shard import ShardStore, accepted_by
from drivetrain.data.streaming.stores import HubStore, LocalStore, RemoteStore
from drivetrain.errors import DataError
from drivetrain.hardware.disk_space import SHARDS_FOLDER, find_cache_folder
from drivetrain.job import Job, hub_address
from drivetrain.job.data import Stream
from drivetrain.job.images import ImageJob
from drivetrain.job.text import TextJob
from drivetrain.storage.remote_address import is_remote, parse
from drivetrain.system.units import format_bytes, parse_bytes

MIN_WINDOW_SAMPLES = 10
"""A window with fewer samples says nothing about the classes of its shards."""


def open_store(job: Job, text: str, key: str) -> ShardStore:
    """The shards at a path or address of the spec."""
    kinds = accepted_by(job)
    if (hub := hub_address.parse(text)) is not None:
        return HubStore(hub, key, kinds)
    return RemoteStore(parse(text), key, kinds) if is_remote(text) else LocalStore(job.resolve(text), key, kinds)


def open_cache(stream: Stream) -> ShardCache:
    """The cache of this machine, with the limit of the job."""
    return ShardCache(find_cache_folder() / SHARDS_FOLDER, parse_bytes(stream.cache))


@contextlib.contextmanager
def fetch_groups_ahead(reader: ShardReader, groups: Sequence[Ids]) -> Iterator[Callable[[int], None]]:
    """Fetch the shards of some batches ahead, if any has to be; yields what is told the number of used batches.

    Args:
        groups: rows of the index of each batch.
    """
    if not reader.cached():
        yield lambda count: None
        return
    ahead = FetchAhead(reader, groups)
    ahead.start()
    try:
        yield ahead.advance
    finally:
        ahead.end()


def hold_out(index: Index, rows: Ids, fraction: float, seed: int, key: str) -> tuple[Ids, Ids]:
    """Rows for training and for validation: whole shards, so that neither reads those of the other.

    Args:
        rows: those that can be used.
        fraction: share of the rows for validation; at least one shard is.

    Raises:
        DataError: if there is a single shard.
    """
    shards = index.shard_of(rows)
    counts = np.bincount(shards, minlength=len(index.shards))
    used = np.flatnonzero(counts)
    if len(used) < 2:
        raise DataError(
            f"{key}: all {len(rows):,} samples are in one shard, and a fraction for validation takes whole shards",
            "two shards or more, or a path for data.validation",
            "write smaller shards, or name shards for data.validation",
        )
    order = used[stateless_random.make_generator(seed, "validation").permutation(len(used))]
    enough = np.searchsorted(np.cumsum(counts[order]), fraction * len(rows)) + 1
    validation_shards = order[: min(int(enough), len(order) - 1)]
    inside = np.isin(shards, validation_shards)
    return rows[~inside], rows[inside]


def shuffle_notes(order: StreamOrder, classes: Ids | None) -> list[str]:
    """How far the order is from a full shuffle, and whether windows hold a single class.

    Args:
        order: of the training samples.
        classes: of each of them, if they have one.
    """
    windows = [window for span in order.windows(0) for window in span]
    largest = sorted((max(map(len, span)) for span in order.windows(0)), reverse=True)
    share = min(1.0, sum(largest) / order.count)
    notes = [
        f"order: {order.streams} streams, each shuffled inside windows of {order.window} shards: a batch is drawn from "
        f"{share:.0%} of the training samples, from 100% in a full shuffle (data.stream.window)"
    ]
    if classes is None:
        return notes
    window_classes = [classes[window] for window in windows if len(window) >= MIN_WINDOW_SAMPLES]
    single = sum(bool((classes_of_window == classes_of_window[0]).all()) for classes_of_window in window_classes)
    if single:
        notes.append(
            f"warning: {single:,} of {len(window_classes):,} windows hold a single class: batches are far from a random sample; write "
            "the shards in random order (drivetrain shard), or raise data.stream.window or streams"
        )
    return notes


def note_indexed(key: str, index: Index) -> str:
    """How many shards there are, and how many of them were read for the index now."""
    size = sum(shard.size for shard in index.shards)
    now = f", {index.indexed_shards:,} of them read for the index now" if index.indexed_shards else ""
    if index.ranged_shards:
        now += f", {index.ranged_shards:,} by their labels alone ({format_bytes(index.ranged_bytes)})"
    return f"{key}: {len(index.shards):,} shards, {format_bytes(size)}{now}"


def unseen_notes(head: Head, splits: Sequence[Split], sample_noun: str) -> list[str]:
    """Notes on classes that whole shards keep out of the training or the validation part."""
    if head.several or not head.classes:
        return []
    notes = []
    for split, part in zip(splits, ("training", "validation"), strict=True):
        target_values = split.targets[head.name].numpy()
        has = np.bincount(target_values[target_values != NO_LABEL], minlength=len(head.classes)) > 0
        if not has.all():
            names = [name for name, is_present in zip(head.classes, has.tolist(), strict=True) if not is_present]
            of = f' "{head.name}"' if head.name else ""
            notes.append(f"warning: no {part} {sample_noun} are of the{of} classes {list_names(names)}")
    return notes


def check_cache(job: Job, stream: Stream, reader: ShardReader) -> list[str]:
    """Check that the shards of all windows fit into the cache; returns notes.

    Raises:
        SpecError: if they do not.
    """
    sizes = sorted((reader.size(shard) for shard in reader.cached()), reverse=True)
    if not sizes:
        return ["the shards are read where they are, without a cache"]
    # A shard that is fetched has its packed form beside it for a moment.
    needed = sum(sizes[: stream.streams * stream.window]) + sizes[0]
    limit = reader.cache.limit
    if needed > limit and sum(sizes) + sizes[0] > limit:
        many = min(len(sizes), stream.streams * stream.window)
        raise job.spec_error(
            ("data", "stream", "cache"),
            f"is {format_bytes(limit)}, and {stream.streams} streams with windows of {stream.window} shards need "
            f"{format_bytes(needed)}: {many} shards of up to {format_bytes(sizes[0])} and one that is fetched",
            f"{format_bytes(needed)} or more",
            "raise it, or lower data.stream.window or streams, or write smaller shards",
        )
    return [f"cache: up to {format_bytes(limit)} of {format_bytes(sum(sizes))} in {reader.cache.folder}"]


MAX_SAMPLED_SHARDS = 8
"""Largest number of shards whose samples give the preprocessing."""


@dataclass(kw_only=True)
class ShardRows:
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
        return [note for source in self.sources for note in (note_indexed(source.key, source.index), *source.notes)]

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
        facts = {"shards": len(self.train.index.shards), "streams": order.streams, "window": order.window}
        return replace(
            dataset,
            decoded=False,
            order=order,
            notes=[*dataset.notes, *shuffle_notes(order, strata), *check_cache(self.job, stream, readers[0])],
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
    train_rows, validation_rows = hold_out(train.index, train.rows, job.data.validation, job.train.seed, train.key)
    return train, train_rows, train, validation_rows


def choose_shards(index: Index, rows: Ids, random: np.random.Generator) -> Ids:
    """At most MAX_SAMPLED_SHARDS of the shards that these rows are in, in random order."""
    used_shards = np.unique(index.shard_of(rows))
    return np.asarray(used_shards[random.permutation(len(used_shards))[:MAX_SAMPLED_SHARDS]], np.int64)
