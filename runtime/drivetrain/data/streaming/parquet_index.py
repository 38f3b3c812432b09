"""The index of a Parquet shard of images, and its rows as the cache stores them."""

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
from drivetrain.data.streaming.shard import Shard, unreadable_error
from drivetrain.errors import DataError, nearest

if TYPE_CHECKING:
    import pyarrow

NONE: Mapping[str, Sequence[str]] = MappingProxyType({})
"""No class names."""
ParquetSource = Path | RangedFile
BYTES_PER_REQUEST_TIME = 256 << 10
"""Bytes that arrive in about the time that one more request takes to be answered."""
LACKS = "\x00lacks"
"""Column of an index that says whether a row has no image."""


def find_image_column(file: ParquetSource, requested: str, shard: Shard, key: str) -> str:
    """The name of the column of images: `requested` if it has images, else the only one that has.

    Raises:
        DataError: if there is no such column, or several.
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
    """The index that `read` returns, made from the file's footer and target columns only.

    Returns None if that would fetch more than half of the shard, or if the images must be read to find empty ones.

    Raises:
        DataError: as `read` does.
    """
    from pyarrow import ArrowException

    try:
        image_column_name = find_image_column(file, images, shard, key)
        label_chunks = [chunk for column in columns for chunk in _chunks(file, column)]
        needed_bytes = sum(int(chunk.total_compressed_size) + BYTES_PER_REQUEST_TIME for chunk in label_chunks)
        if not _is_full(file, image_column_name) or needed_bytes > shard.size // 2:
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
    """The index of a Parquet shard of images: a table with a row for each row of the shard: its targets, and LACKS.

    Args:
        file: the shard on this machine, or in a store.
        columns: names of the target columns.
        classes: class names by column that are declared outside of the shards.

    Raises:
        DataError: if the shard cannot be read, or lacks one of the columns.
    """
    from pyarrow import ArrowException, array, bool_, parquet

    try:
        names = parquet.read_schema(file).names
        images = find_image_column(file, images, shard, key)
        check_columns(columns, names, shard, key)
        index_table = labels(file, columns, shard, key)
        index_table = tables.with_names(index_table, classes)
        is_empty = [False] * len(index_table)
        if not _is_full(file, images):
            is_empty = [not size for size in map(len, rows(file, images, shard, key))]
    except (ArrowException, OSError) as error:
        raise unreadable(shard, key, error) from None
    unpacked_size = count_uncompressed(file, images) + flat_file.count_overhead(len(index_table))
    return index_table.append_column(LACKS, array(is_empty, bool_())).replace_schema_metadata(
        {SHARD_BYTES: str(unpacked_size)}
    )


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


def rows(file: ParquetSource, images: str, shard: Shard, key: str) -> Iterator[bytes]:
    """Yield the encoded image of each row; empty bytes where there is none."""
    for batch in parquet_file.read_batches(file, [images], 256, f"shard {shard.address}", key):
        for cell in batch.column(0):
            value: Any = cell.as_py()
            content = value.get("bytes") if isinstance(value, dict) else value
            yield bytes(content or b"")


def count_uncompressed(file: ParquetSource, column: str) -> int:
    """Uncompressed bytes of a column by the file's metadata, where equal cells may be counted once."""
    return sum(int(chunk.total_uncompressed_size) for chunk in _chunks(file, column))


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
    from pyarrow import parquet

    metadata = parquet.read_metadata(file)
    groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
    all_chunks = [group.column(index) for group in groups for index in range(group.num_columns)]
    return [chunk for chunk in all_chunks if chunk.path_in_schema.split(".")[0] == column]


def unreadable(shard: Shard, key: str, error: Exception) -> DataError:
    """The error for a Parquet shard that pyarrow refuses."""
    if isinstance(error, MemoryError):
        return decoded_size.too_large_error(f"shard {shard.address} does not fit into memory", key)
    return unreadable_error(shard, key, error, "complete Parquet files with the same columns")


@dataclass(frozen=True)
class ImageRows:
    """The images of a Parquet shard; the cache stores their encoded bytes in a flat file."""

    column: str
    """Name of the column of images."""
    key: str
    """The spec key that names the shards."""

    @property
    def unpacked(self) -> str:
        """How the shard becomes what is in the cache: part of the name there."""
        return f"images {self.column}"

    def write(self, file: Path, shard: Shard, path: Path, room: int) -> None:
        """Write all images of `file` to `path`."""
        flat_file.write(path, limit_rows(self._rows(file, shard), room))

    def _rows(self, file: Path, shard: Shard) -> Iterator[bytes]:
        """Yield the images. A damaged page (an OSError of pyarrow) must not be taken for an error of the cache's disk."""
        from pyarrow import ArrowException

        column = find_image_column(file, self.column, shard, self.key)
        try:
            yield from rows(file, column, shard, self.key)
        except (ArrowException, OSError) as error:
            raise unreadable(shard, self.key, error) from None

    def is_whole(self, handle: int, shard: Shard, count: int) -> bool:
        """Whether an open file of the cache has all images."""
        return flat_file.is_whole(handle, count)

    def read(self, handle: int, rows: Ids, start: int) -> list[bytes]:
        """Read the encoded images of some rows of the index."""
        return flat_file.read(handle, (rows - start).tolist())
