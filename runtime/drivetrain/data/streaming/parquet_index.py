"""What is in a Parquet shard, and its rows as they lie in the cache."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from drivetrain.data import decoded_size
from drivetrain.data.formats import parquet_file
from drivetrain.data.formats import shards as tables
from drivetrain.data.formats.parquet_file import decode
from drivetrain.data.images import image_column
from drivetrain.data.stateless_random import Ids
from drivetrain.data.streaming import flat_file
from drivetrain.data.streaming.index import SHARD_BYTES
from drivetrain.data.streaming.ranged_file import RangedFile
from drivetrain.data.streaming.reader import limit_rows
from drivetrain.data.streaming.shard import Shard
from drivetrain.errors import DataError, nearest

if TYPE_CHECKING:
    import pyarrow

NONE: Mapping[str, Sequence[str]] = MappingProxyType({})
ParquetSource = Path | RangedFile
BYTES_PER_REQUEST_TIME = 256 << 10
"""Bytes that come in about the time that the answer to one more request takes."""
LACKS = "\x00lacks"
"""Column of an index: whether a row has no image."""


def image_name(file: ParquetSource, requested: str, shard: Shard, key: str) -> str:
    """The column of images: the wanted one, or the only one.

    Raises:
        DataError: if there is none.
    """
    from pyarrow import ArrowException, parquet

    try:
        schema = parquet.read_schema(file)
    except (ArrowException, OSError) as error:
        raise unreadable(shard, key, error) from None
    names = [str(field.name) for field in schema if image_column.holds_images(field.type)]
    if requested in names:
        return requested
    if len(names) == 1:
        return names[0]
    raise DataError(
        f'{key}: shard {shard.address} has no column "{requested}" of images',
        f"columns of encoded images: {', '.join(names) or 'none'}; its columns: {', '.join(schema.names)}",
        "name one with data.path_column" if names else "write the images into the shards: `drivetrain shard DIR`",
    )


def glance(
    file: RangedFile,
    shard: Shard,
    images: str,
    columns: Sequence[str],
    key: str,
    classes: Mapping[str, Sequence[str]] = NONE,
) -> pyarrow.Table | None:
    """The index as `read` makes it, from the end of the file and the columns of targets; None if that is not much less.

    Raises:
        DataError: as from `read`.
    """
    from pyarrow import ArrowException

    try:
        name = image_name(file, images, shard, key)
        labels = [chunk for column in columns for chunk in _chunks(file, column)]
        needed = sum(int(chunk.total_compressed_size) + BYTES_PER_REQUEST_TIME for chunk in labels)
        if not _is_full(file, name) or needed > shard.size // 2:
            return None
    except (ArrowException, OSError) as error:
        raise unreadable(shard, key, error) from None
    return read(file, shard, images, columns, key, classes)


def read(
    file: ParquetSource,
    shard: Shard,
    images: str,
    columns: Sequence[str],
    key: str,
    classes: Mapping[str, Sequence[str]] = NONE,
) -> pyarrow.Table:
    """The index of a Parquet shard of images: a row for each of its rows.

    Args:
        file: the shard on this machine, or in a store.
        shard: for messages.
        images: the wanted column of images.
        columns: the targets.
        key: the spec key that names the shards.
        classes: names of classes that are declared beside the shards.

    Raises:
        DataError: if it cannot be read, or lacks one of the columns.
    """
    from pyarrow import ArrowException, array, bool_, parquet

    try:
        names = parquet.read_schema(file).names
        images = image_name(file, images, shard, key)
        check_columns(columns, names, shard, key)
        index_table = labels(file, columns, shard, key)
        index_table = tables.with_names(index_table, classes)
        empty = [False] * len(index_table)
        if not _is_full(file, images):
            empty = [not size for size in map(len, rows(file, images, shard, key))]
    except (ArrowException, OSError) as error:
        raise unreadable(shard, key, error) from None
    unpacked_size = count_uncompressed(file, images) + flat_file.overhead(len(index_table))
    return index_table.append_column(LACKS, array(empty, bool_())).replace_schema_metadata(
        {SHARD_BYTES: str(unpacked_size)}
    )


def labels(file: ParquetSource, columns: Sequence[str], shard: Shard, key: str) -> pyarrow.Table:
    """These columns of a shard, classes by their names.

    Raises:
        DataError: if they do not fit into memory.
        pyarrow.ArrowException, OSError: if the file cannot be read.
    """
    subject = f"shard {shard.address}"
    return tables.class_names(decode(parquet_file.read_table(file, columns, subject, key), subject, key))


def check_columns(columns: Sequence[str], names: Sequence[str], shard: Shard, key: str) -> None:
    """Check that a shard has these columns.

    Raises:
        DataError: for the first that is missing; `key` names what names it.
    """
    if missing := [name for name in columns if name not in names]:
        raise DataError(
            f'{key}: shard {shard.address} has no column "{missing[0]}"',
            f"its columns: {', '.join(names)}",
            nearest(missing[0], names) or "name one of its columns",
        )


def rows(file: ParquetSource, images: str, shard: Shard, key: str) -> Iterator[bytes]:
    """The encoded image of each row; empty where there is none."""
    for batch in parquet_file.read_batches(file, [images], 256, f"shard {shard.address}", key):
        for cell in batch.column(0):
            value: Any = cell.as_py()
            content = value.get("bytes") if isinstance(value, dict) else value
            yield bytes(content or b"")


def count_uncompressed(file: ParquetSource, column: str) -> int:
    """Bytes of a column as the file says; cells that are the same may be counted once."""
    return sum(int(chunk.total_uncompressed_size) for chunk in _chunks(file, column))


def _is_full(file: ParquetSource, column: str) -> bool:
    """Whether the statistics of the file say that every row has content in a column."""
    all_statistics = [
        statistics.statistics for statistics in _chunks(file, column) if not statistics.path_in_schema.endswith(".path")
    ]
    return all(
        statistics is not None and statistics.has_null_count and statistics.null_count == 0
        for statistics in all_statistics
    )


def _chunks(file: ParquetSource, column: str) -> list[Any]:
    """The metadata of all parts of a column."""
    from pyarrow import parquet

    metadata = parquet.read_metadata(file)
    groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
    every = [group.column(index) for group in groups for index in range(group.num_columns)]
    return [chunk for chunk in every if chunk.path_in_schema.split(".")[0] == column]


def unreadable(shard: Shard, key: str, error: Exception) -> DataError:
    """The error for a Parquet shard that pyarrow refuses."""
    if isinstance(error, MemoryError):
        return decoded_size.too_large(f"shard {shard.address} does not fit into memory", key)
    return DataError(
        f"{key}: shard {shard.address} cannot be read: {str(error).splitlines()[0][:200]}",
        "complete Parquet files with the same columns",
        "write or copy it again",
    )


@dataclass(frozen=True)
class ImageRows:
    """Images of a Parquet file, which lie in the cache as their encoded bytes."""

    column: str
    """The wanted one."""
    key: str
    """The spec key that names the shards."""

    @property
    def unpacked(self) -> str:
        """What is taken out of the shard."""
        return f"images {self.column}"

    def write(self, file: Path, shard: Shard, path: Path, room: int) -> None:
        """Unpack all images."""
        flat_file.write(path, limit_rows(self._rows(file, shard), room))

    def _rows(self, file: Path, shard: Shard) -> Iterator[bytes]:
        """The images. What pyarrow says of a damaged page must not be taken for an error of the disk of the cache."""
        from pyarrow import ArrowException

        column = image_name(file, self.column, shard, self.key)
        try:
            yield from rows(file, column, shard, self.key)
        except (ArrowException, OSError) as error:
            raise unreadable(shard, self.key, error) from None

    def is_whole(self, handle: int, shard: Shard, count: int) -> bool:
        """Whether all images are there."""
        return flat_file.is_whole(handle, count)

    def read(self, handle: int, rows: Ids, start: int) -> list[bytes]:
        """The encoded images of some rows."""
        return flat_file.read(handle, (rows - start).tolist())
