"""The index of a Parquet shard of images, and its rows as the cache stores them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow
from pyarrow import ArrowException, array, bool_, parquet

from drivetrain.data import decoded_size
from drivetrain.data.formats import parquet_file
from drivetrain.data.formats import shards as tables
from drivetrain.data.formats.parquet_file import decode
from drivetrain.data.images import image_column
from drivetrain.data.streaming.index import SHARD_BYTES
from drivetrain.data.streaming.reader import FlatRows, count_overhead
from drivetrain.data.streaming.shard import RangedFile, Shard, unreadable_error
from drivetrain.errors import DataError, nearest

ParquetSource = Path | RangedFile
BYTES_PER_REQUEST_TIME = 256 << 10
"""Bytes that arrive in about the time that one more request takes to be answered."""
LACKS = "\x00lacks"
"""Column of an index that says whether a row has no image."""


def labels(file: ParquetSource, columns: Sequence[str], shard: Shard, key: str) -> pyarrow.Table:
    """Read these columns of a shard; class numbers become class names.

    Raises:
        DataError: if the columns do not fit into memory.
        pyarrow.ArrowException, OSError: if the file cannot be read.
    """
    subject = f"shard {shard.address}"
    return tables.class_names(decode(parquet_file.read_table(file, columns, subject, key), subject, key))


def check_columns(columns: Sequence[str], names: Sequence[str], shard: Shard, key: str) -> None:
    """Check that a shard has these columns.

    Raises:
        DataError: for the first missing column; the message begins with `key`, the spec key that names it.
    """
    if missing := [name for name in columns if name not in names]:
        raise DataError(
            f'{key}: shard {shard.address} has no column "{missing[0]}"',
            f"its columns: {', '.join(names)}",
            nearest(missing[0], names) or "name one of its columns",
        )


@contextmanager
def blame_shard(shard: Shard, key: str) -> Iterator[None]:
    """A block that reads a Parquet shard; raises DataError in place of an error of pyarrow.

    A damaged page (an OSError of pyarrow) must not be taken for an error of the cache's disk.
    """
    try:
        yield
    except (ArrowException, OSError) as error:
        if isinstance(error, MemoryError):
            raise decoded_size.too_large_error(f"shard {shard.address} does not fit into memory", key) from None
        raise unreadable_error(shard, key, error, "complete Parquet files with the same columns") from None


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
        with blame_shard(shard, self.key):
            yield from self._read_images(file, self._find_column(file, shard), shard)

    def glance(self, file: RangedFile, shard: Shard) -> pyarrow.Table | None:
        """The index that `index_shard` returns, made from the file's footer and target columns only.

        Returns None if that would fetch more than half of the shard, or if the images must be read to find empty ones.

        Raises:
            DataError: as `index_shard` does.
        """
        with blame_shard(shard, self.key):
            label_chunks = [chunk for name in self.targets for chunk in _chunks(file, name)]
            needed_bytes = sum(int(chunk.total_compressed_size) + BYTES_PER_REQUEST_TIME for chunk in label_chunks)
            if not _is_full(file, self._find_column(file, shard)) or needed_bytes > shard.size // 2:
                return None
        return self.index_shard(file, shard)

    def index_shard(self, file: ParquetSource, shard: Shard) -> pyarrow.Table:
        """The index of a shard: a table with a row for each row of the shard: its targets, and LACKS.

        Args:
            file: the shard on this machine, or in a store.

        Raises:
            DataError: if the shard cannot be read, or lacks one of the columns.
        """
        with blame_shard(shard, self.key):
            column = self._find_column(file, shard)
            check_columns(self.targets, parquet.read_schema(file).names, shard, self.key)
            index_table = tables.with_names(labels(file, self.targets, shard, self.key), self.classes)
            is_empty = [False] * len(index_table)
            if not _is_full(file, column):
                is_empty = [not image for image in self._read_images(file, column, shard)]
        # By the metadata, in which equal cells may be counted once.
        image_bytes = sum(int(chunk.total_uncompressed_size) for chunk in _chunks(file, column))
        unpacked_size = image_bytes + count_overhead(len(index_table))
        return index_table.append_column(LACKS, array(is_empty, bool_())).replace_schema_metadata(
            {SHARD_BYTES: str(unpacked_size)}
        )

    def _find_column(self, file: ParquetSource, shard: Shard) -> str:
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

    def _read_images(self, file: ParquetSource, column: str, shard: Shard) -> Iterator[bytes]:
        for batch in parquet_file.read_batches(file, [column], 256, f"shard {shard.address}", self.key):
            for cell in batch.column(0):
                value: Any = cell.as_py()
                content = value.get("bytes") if isinstance(value, dict) else value
                yield bytes(content or b"")


def _is_full(file: ParquetSource, column: str) -> bool:
    """Whether the file's statistics say that no row of a column is null; False if they are missing."""
    # The field `path` beside `bytes` is only the file's name, and may be null.
    all_statistics = [chunk.statistics for chunk in _chunks(file, column) if not chunk.path_in_schema.endswith(".path")]
    return all(
        statistics is not None and statistics.has_null_count and statistics.null_count == 0
        for statistics in all_statistics
    )


def _chunks(file: ParquetSource, column: str) -> list[Any]:
    """The metadata of all column chunks of a column: of every row group, and of every field of a struct."""
    metadata = parquet.read_metadata(file)
    groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
    all_chunks = [group.column(index) for group in groups for index in range(group.num_columns)]
    return [chunk for chunk in all_chunks if chunk.path_in_schema.split(".")[0] == column]
