"""The images of an image job in shards: labels are read before the training, images during it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow
from pyarrow import array, bool_, parquet
from torch import Tensor

from drivetrain.data import stateless_random
from drivetrain.data.dataset import Dataset, Head, InputRecord
from drivetrain.data.formats import parquet_file
from drivetrain.data.formats import shards as tables
from drivetrain.data.images import decode, image_column, image_files, manifest
from drivetrain.data.images.image_targets import LabelForm, ManifestRows
from drivetrain.data.images.preprocess import MAX_MEASURED_IMAGES, ImagePreprocessing
from drivetrain.data.images.resize import DEFAULT_RESIZE, Resize
from drivetrain.data.images.source import Geometry, ImageSource, ImageSplit, LabelledRows, decide_geometry
from drivetrain.data.source import BadSample, check_bad_samples
from drivetrain.data.stateless_random import Ids
from drivetrain.data.streaming import index as indices
from drivetrain.data.streaming import open_stream, tar_file
from drivetrain.data.streaming.cache import ShardCache
from drivetrain.data.streaming.index import Index
from drivetrain.data.streaming.open_stream import ShardParts, ShardRows
from drivetrain.data.streaming.reader import FlatRows, Rows, ShardReader, TarRows, count_overhead
from drivetrain.data.streaming.shard import TAR, RangedFile, Shard, ShardStore
from drivetrain.errors import DataError
from drivetrain.job.images import ImageJob
from drivetrain.pretrained import image_input

BYTES_PER_REQUEST_TIME = 256 << 10
"""Bytes that arrive in about the time that one more request takes to be answered."""
LACKS = "\x00lacks"
"""Column of an index that says whether a row has no image."""


@dataclass(frozen=True)
class StreamedImages:
    """All images of the shards of an index; `rows` are those of the index."""

    reader: ShardReader
    size: int = 0
    channels: int = 0
    resize: Resize = DEFAULT_RESIZE

    def title(self, row: int) -> str:
        """Shard and number of an image."""
        return self.reader.index.title(row)

    def fit_to(self, size: int, channels: int, resize: Resize = DEFAULT_RESIZE) -> StreamedImages:
        """The same images, decoded as squares of `size` pixels with the given number of channels."""
        return replace(self, size=size, channels=channels, resize=resize)

    def gather(self, rows: Ids) -> Tensor:
        """Images of these rows, shape (len(rows), channels, size, size), uint8.

        Raises:
            DataError: if an image cannot be decoded, or a shard has changed.
            StorageError: if a shard cannot be fetched.
        """
        form = self.size, self.channels, self.resize
        return image_files.decode_all(self.reader.read(rows), map(self.title, rows.tolist()), form, undecodable_error)


class StreamedSplit(ImageSplit):
    """Streamed images for training or for validation."""

    images: StreamedImages

    def fetch_ahead(self, groups: Sequence[Ids]) -> AbstractContextManager[Callable[[int], None]]:
        """A context in which the shards of the batches are fetched ahead (protocol `FetchesAhead`)."""
        return open_stream.fetch_groups_ahead(self.images.reader, [self.rows[ids] for ids in groups])


@dataclass(frozen=True)
class EncodedImages:
    """Some encoded images in memory, as `image_files.Cells`."""

    content: Sequence[bytes]

    def source(self, index: int) -> decode.Source:
        """The content of an image."""
        return self.content[index]

    def stamps(self) -> list[object]:
        """Empty: these images are never cached, so nothing has to notice a change."""
        return []

    def file_names(self) -> list[str]:
        """Empty: these images are not divided."""
        return []


def undecodable_error(title: str, reason: str) -> DataError:
    """The error for an image of a shard that cannot be decoded."""
    return DataError(
        f"{title}: {reason}",
        "images that can be decoded; those of shards are not all decoded before the training, so none can be left out later",
        "write the shard without it; `drivetrain shard` leaves such images out",
    )


@dataclass(kw_only=True)
class ShardSource(LabelledRows, ShardRows):
    """The images of the shards of one address; `targets` has those of the usable rows."""

    images: StreamedImages

    def find_targets(self, rows: Ids) -> Ids:
        """Positions of some rows in `targets`."""
        return np.searchsorted(self.rows, rows).astype(np.int64)


@dataclass
class StreamedParts(ShardParts[ShardSource]):
    """The streamed images of a job, divided into training and validation; shards are divided as they are."""

    sample: ImageSource | None = None
    """Some of the training images, from a few shards; None if the run has read this data before."""
    geometry: Geometry | None = None
    """How the network sees the images, by the sample."""
    stored: ClassVar[dict[str, int]] = {}

    def build_measured_split(self, head: Head) -> ImageSplit:
        """The images that decide the preprocessing."""
        assert self.sample is not None
        return ImageSplit(self.sample.images, self.sample.rows, None)

    def build_splits(self, head: Head, prepare: ImagePreprocessing) -> tuple[StreamedSplit, StreamedSplit, list[str]]:
        """The splits for training and for validation, and no notes on the latter."""
        for source in self.sources:
            source.images = source.images.fit_to(prepare.image_size, prepare.channels, prepare.resize)
        train, validation = (
            StreamedSplit(source.images, rows, source.build_tensor(rows, head))
            for source, rows in ((self.train, self.train_rows), (self.validation, self.validation_rows))
        )
        return train, validation, []

    def complete(self, dataset: Dataset) -> Dataset:
        """The dataset with what streamed samples have."""
        head, splits = dataset.heads[""], (dataset.train, dataset.validation)
        dataset.notes += [*self.list_notes(), *open_stream.unseen_notes(head, splits, "images")]
        classes = dataset.train.targets[""].numpy() if head.classes and not head.several else None
        return self.add_stream(dataset, [self.train.images.reader, self.validation.images.reader], classes)


def read(job: ImageJob, form: LabelForm, recorded: InputRecord | None) -> StreamedParts:
    """Index the shards of a job, divide them, and read some of the training images.

    Raises:
        DataError: if the shards cannot be used.
    """
    assert job.data.stream is not None
    cache = open_stream.open_cache(job.data.stream)

    def read_address(address: str, key: str, train: ShardSource | None) -> ShardSource:
        if train is None:
            source = index_source(job, address, form, key, cache)
            source.check_targets()
            return source
        # Further shards are read with the separator that was found in the training data.
        declared_form = replace(form, separator=train.separator or form.separator)
        return index_source(job, address, declared_form, key, cache)

    parts = StreamedParts(*open_stream.divide(job, read_address), job)
    if not (recorded and recorded.same_data):
        expected = image_input.read_expected(job)
        parts.sample = _sample_images(parts.train, parts.train_rows, job.train.seed)
        parts.geometry = decide_geometry(job, parts.sample, recorded, expected)
    return parts


def index_source(job: ImageJob, address: str, form: LabelForm, key: str, cache: ShardCache) -> ShardSource:
    """Index the shards of one address, and leave out rows without an image or a usable target.

    Raises:
        DataError: if too many rows cannot be used; names `key`.
    """
    store = open_stream.open_store(job, address, key)
    index, shard_rows, rows_without_image = _index_shards(store, job.data.path_column, form, key, cache)
    separator_holder = ManifestRows()
    unusable_targets, take_targets = manifest.targets(separator_holder, index.rows, form, Path(address), key)
    reasons = dict.fromkeys(rows_without_image.tolist(), "no image") | unusable_targets
    bad = [BadSample(index.title(row), reasons[row]) for row in sorted(reasons)]
    left_out = check_bad_samples(bad, len(index.rows), job.data.bad_samples, key)
    usable = np.setdiff1d(np.arange(len(index.rows), dtype=np.int64), np.array(sorted(reasons), np.int64))
    return ShardSource(
        key=key,
        images=StreamedImages(ShardReader(store, index, cache, shard_rows)),
        index=index,
        targets=take_targets(usable.tolist()),
        rows=usable,
        separator=separator_holder.separator,
        notes=left_out,
    )


def _index_shards(
    store: ShardStore, images: str, form: LabelForm, key: str, cache: ShardCache
) -> tuple[Index, Rows, Ids]:
    """The index of shards with the images in the column `images`, how its rows are read, and those that have no image."""
    first = store.shards()[0]
    if first.kind == TAR:
        look = partial(tar_file.index_images, columns=form.columns, key=key)
        index = indices.read(store, cache, look, ["tar", *form.columns])
        offsets, sizes = (index.rows[name].fill_null(-1).to_numpy() for name in (tar_file.OFFSET, tar_file.SIZE))
        return index, TarRows(offsets, sizes), np.flatnonzero((offsets < 0) | (sizes == 0))
    classes = store.class_names()
    purpose = ["images", images, *form.columns, *map(str, classes.items())]
    rows = ImageRows(images, key, form.columns, classes)
    index = indices.read(store, cache, rows.index_shard, purpose, rows.glance)
    return index, rows, np.flatnonzero(index.rows[LACKS].to_numpy())


def _sample_images(train: ShardSource, train_rows: Ids, seed: int) -> ImageSource:
    """Read and decode some of the training images, from a few shards."""
    random = stateless_random.make_generator(seed, "statistics")
    sampled_shards = open_stream.choose_shards(train.index, train_rows, random)
    rows = train_rows[np.isin(train.index.shard_of(train_rows), sampled_shards)]
    rows = np.sort(rows[random.permutation(len(rows))[:MAX_MEASURED_IMAGES]])
    titles = [train.index.title(row) for row in rows.tolist()]
    images, broken = image_files.check_images("", titles, EncodedImages(train.images.reader.read(rows)))
    for bad in broken.values():
        raise undecodable_error(bad.title, bad.reason)
    return ImageSource(
        key=train.key, images=images, targets=train.targets, rows=np.arange(len(rows), dtype=np.int64), notes=[]
    )


@dataclass(frozen=True)
class ImageRows(FlatRows):
    """The Parquet shards of images at one address: their index, and their encoded images, which the cache stores in flat files."""

    column: str
    """Name of the column of images, as the job has it; without it, the only one that has images is read."""
    key: str
    """The spec key that names the shards."""
    targets: Sequence[str]
    """Names of the target columns."""
    classes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Class names by column that are declared outside of the shards."""

    @property
    def unpacked(self) -> str:
        """How the shard becomes what is in the cache: part of the name there."""
        return f"images {self.column}"

    def unpack(self, file: Path, shard: Shard) -> Iterator[bytes]:
        """Yield the encoded image of each row; empty bytes where there is none."""
        with indices.blame_shard(shard, self.key):
            yield from self._read_images(file, self._find_column(file, shard), shard)

    def glance(self, file: RangedFile, shard: Shard) -> pyarrow.Table | None:
        """The index that `index_shard` returns, made from the file's footer and target columns only.

        Returns None if that would fetch more than half of the shard, or if the images must be read to find empty ones.

        Raises:
            DataError: as `index_shard` does.
        """
        with indices.blame_shard(shard, self.key):
            label_chunks = [chunk for name in self.targets for chunk in _chunks(file, name)]
            needed_bytes = sum(int(chunk.total_compressed_size) + BYTES_PER_REQUEST_TIME for chunk in label_chunks)
            if not _is_full(file, self._find_column(file, shard)) or needed_bytes > shard.size // 2:
                return None
        return self.index_shard(file, shard)

    def index_shard(self, file: indices.ParquetSource, shard: Shard) -> pyarrow.Table:
        """The index of a shard: a table with a row for each row of the shard: its targets, and LACKS.

        Args:
            file: the shard on this machine, or in a store.

        Raises:
            DataError: if the shard cannot be read, or lacks one of the columns.
        """
        with indices.blame_shard(shard, self.key):
            column = self._find_column(file, shard)
            indices.check_columns(self.targets, parquet.read_schema(file).names, shard, self.key)
            index_table = tables.with_names(indices.read_columns(file, self.targets, shard, self.key), self.classes)
            is_empty = [False] * len(index_table)
            if not _is_full(file, column):
                is_empty = [not image for image in self._read_images(file, column, shard)]
        # By the metadata, in which equal cells may be counted once.
        image_bytes = sum(int(chunk.total_uncompressed_size) for chunk in _chunks(file, column))
        unpacked_size = image_bytes + count_overhead(len(index_table))
        return index_table.append_column(LACKS, array(is_empty, bool_())).replace_schema_metadata(
            {indices.SHARD_BYTES: str(unpacked_size)}
        )

    def _find_column(self, file: indices.ParquetSource, shard: Shard) -> str:
        """The name of the column of images: `column` if it has images, else the only one that has.

        Raises:
            DataError: if there is no such column, or several.
        """
        schema = parquet.read_schema(file)
        names = [str(field.name) for field in schema if image_column.holds_images(field.type)]
        if self.column in names:
            return self.column
        if len(names) == 1:
            return names[0]
        raise DataError(
            f'{self.key}: shard {shard.address} has no column "{self.column}" of images',
            f"columns of encoded images: {', '.join(names) or 'none'}; its columns: {', '.join(schema.names)}",
            "name one with data.path_column" if names else "write the images into the shards: `drivetrain shard DIR`",
        )

    def _read_images(self, file: indices.ParquetSource, column: str, shard: Shard) -> Iterator[bytes]:
        for batch in parquet_file.read_batches(file, [column], 256, f"shard {shard.address}", self.key):
            for cell in batch.column(0):
                value: Any = cell.as_py()
                content = value.get("bytes") if isinstance(value, dict) else value
                yield bytes(content or b"")


def _is_full(file: indices.ParquetSource, column: str) -> bool:
    """Whether the file's statistics say that no row of a column is null; False if they are missing."""
    # The field `path` beside `bytes` is only the file's name, and may be null.
    all_statistics = [chunk.statistics for chunk in _chunks(file, column) if not chunk.path_in_schema.endswith(".path")]
    return all(
        statistics is not None and statistics.has_null_count and statistics.null_count == 0
        for statistics in all_statistics
    )


def _chunks(file: indices.ParquetSource, column: str) -> list[Any]:
    """The metadata of all column chunks of a column: of every row group, and of every field of a struct."""
    metadata = parquet.read_metadata(file)
    groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
    all_chunks = [group.column(index) for group in groups for index in range(group.num_columns)]
    return [chunk for chunk in all_chunks if chunk.path_in_schema.split(".")[0] == column]
