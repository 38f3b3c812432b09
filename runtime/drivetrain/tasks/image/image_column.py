"""Images inside a table: a Parquet or Arrow column of encoded images, as in image datasets of Hugging Face.

A cell is only bytes, or a struct of `bytes` and `path`, one of them possibly null. The encoded bytes stay unchanged in
the table: an Arrow file is mapped, a Parquet file is read into memory, up to a share of the memory limit.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

import pyarrow
from pyarrow import ArrowException, compute, parquet, types

from drivetrain.data.fingerprint import stamp
from drivetrain.data.formats import shards
from drivetrain.errors import DataError
from drivetrain.hardware.cgroup import read_memory_limit
from drivetrain.system.units import format_bytes
from drivetrain.tasks.image.decode import Source

MAX_MEMORY_SHARE = 0.5
"""Largest share of the memory limit for encoded images of Parquet files."""
_TABLE_SUFFIXES = (".parquet", ".arrow")


@dataclass(frozen=True)
class ImageCells:
    """Encoded images in a column of a table."""

    table: Path
    name: str
    """Name of the column; a table can have several columns of images."""
    column: Any
    """pyarrow.ChunkedArray of all rows: taking some rows would copy a mapped file into memory."""
    rows: tuple[int, ...]
    """Row of each image in the table."""

    def source(self, index: int) -> Source:
        """Return the content of an image, or the path of its file if the table has only the path."""
        cell = self.column[self.rows[index]]
        if _is_binary(self.column.type):
            return bytes(cell.as_py() or b"")
        content = cell["bytes"].as_py()
        return bytes(content) if content is not None else self._join_path(str(cell["path"].as_py()))

    def _join_path(self, name: str) -> str:
        return os.path.join(self.table.parent, name)

    def stamps(self) -> list[object]:
        """Return values that change if one of the images changes, for the key of a cache."""
        files: list[str | Path] = [*shards.files(self.table, "data"), *self._list_image_files()]
        return [self.name, [(os.path.abspath(file), stamp(file)) for file in files], list(self.rows)]

    def file_names(self) -> list[str]:
        """Return the paths next to the bytes; a number for an image without a path."""
        if not _has_paths(self.column):
            return []
        paths = compute.struct_field(self.column, "path").take(list(self.rows)).to_pylist()
        return [path or str(index) for index, path in enumerate(paths)]

    def _list_image_files(self) -> list[str]:
        """List the files of cells that have only a path."""
        return [self._join_path(name) for name in list_named_files(self.column, self.rows)]


def find(path: Path, requested: str, key: str) -> str:
    """Find the column of images of a table.

    Returns:
        `requested` if it holds images; else, if the table has no such column, its only column of images; else empty.

    Raises:
        DataError: if the images take too much memory; names `key`.
    """
    if path.suffix.lower() not in _TABLE_SUFFIXES or not path.is_file():
        return ""
    schema = _read_schema(path)
    # A table that cannot be read is reported by the reader of tables.
    if schema is None:
        return ""
    names = [field.name for field in schema if holds_images(field.type)]
    if requested in names:
        name = requested
    elif len(names) == 1 and requested not in schema.names:
        name = names[0]
    else:
        name = ""
    if name and path.suffix.lower() == ".parquet":
        _check_memory(path, name, key)
    return name


def holds_images(kind: Any) -> bool:
    """Return whether cells of this type hold encoded images."""
    if types.is_struct(kind):
        inner = {field.name: field.type for field in kind}
        return {"bytes"} <= inner.keys() <= {"bytes", "path"} and _is_binary(inner["bytes"])
    return _is_binary(kind)


def _find_empty_cells(column: pyarrow.ChunkedArray) -> list[bool]:
    """Return whether each cell has neither bytes nor a path."""
    empty = compute.is_null(column)
    if not _is_binary(column.type):
        names = sorted({field.name for field in column.type})
        has_nothing = reduce(compute.and_, (compute.is_null(compute.struct_field(column, name)) for name in names))
        empty = compute.or_(empty, has_nothing)
    return [bool(is_empty) for is_empty in empty.to_pylist()]


def name_cells(column: pyarrow.ChunkedArray, file: Path) -> list[str]:
    """Return a title for each row, such as `train.parquet row 7 (cat.png)`; empty for a cell without an image."""
    names = compute.struct_field(column, "path").to_pylist() if _has_paths(column) else [None] * len(column)
    titles = [f"{file.name} row {row}" + (f" ({name})" if name else "") for row, name in enumerate(names, start=1)]
    return ["" if is_empty else title for is_empty, title in zip(_find_empty_cells(column), titles, strict=True)]


def list_named_files(column: pyarrow.ChunkedArray, rows: Sequence[int]) -> list[str]:
    """List the paths of the cells of some rows that have a path and no bytes."""
    if not _has_paths(column):
        return []
    # Only the paths are taken, so the bytes of the cells are not copied.
    without_bytes = compute.is_null(compute.struct_field(column, "bytes")).take(list(rows))
    paths = compute.struct_field(column, "path").take(list(rows))
    return [name for name in paths.filter(without_bytes).to_pylist() if name]


def _has_paths(column: pyarrow.ChunkedArray) -> bool:
    return not _is_binary(column.type) and any(field.name == "path" for field in column.type)


def _is_binary(kind: Any) -> bool:
    return bool(types.is_binary(kind) or types.is_large_binary(kind))


def _read_schema(path: Path) -> Any:
    from drivetrain.data.formats import arrow_file

    try:
        return parquet.read_schema(path) if path.suffix.lower() == ".parquet" else arrow_file.schema(path)
    except (ArrowException, OSError):
        return None


def _check_memory(path: Path, name: str, key: str) -> None:
    """Refuse encoded images of Parquet files that take more than MAX_MEMORY_SHARE of the memory limit."""
    size = 0
    for file in shards.files(path, key):
        with parquet.ParquetFile(file) as opened:
            groups = (opened.metadata.row_group(index) for index in range(opened.metadata.num_row_groups))
            columns = (group.column(index) for group in groups for index in range(group.num_columns))
            size += sum(c.total_uncompressed_size for c in columns if c.path_in_schema.split(".")[0] == name)
    limit = read_memory_limit()
    if size > MAX_MEMORY_SHARE * limit:
        raise DataError(
            f'the images in column "{name}" of {path} are {format_bytes(size)}, and the memory limit is {format_bytes(limit)}',
            f"images in Parquet up to {format_bytes(int(MAX_MEMORY_SHARE * limit))}, which are kept in memory; Arrow files, which are mapped",
            "raise limits.memory, or write the table as Arrow: "
            "python -c 'import datasets; datasets.Dataset.from_parquet(FILE).save_to_disk(FOLDER)'",
            key=key,
        )
