"""Reads Arrow files: a stream, as `save_to_disk` of the datasets library writes it, or a file with an index."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from runtime.data.formats import shards

if TYPE_CHECKING:
    import pyarrow


class ArrowReader:
    """Reads one file, or all files of a table in several."""

    def __init__(self, path: Path, key: str) -> None:
        self.files = shards.files(path, key)

    def names(self) -> list[str]:
        """The column names."""
        from pyarrow import memory_map

        with memory_map(str(self.files[0])) as source:
            return list(_opened(source).schema.names)

    def read(self, columns: Sequence[str], text: Sequence[str]) -> pyarrow.Table:
        """Read these columns; classes by their names."""
        from pyarrow import concat_tables

        return concat_tables([_read(path).select(list(columns)) for path in self.files])

    def head(self, rows: int) -> tuple[pyarrow.Table, int]:
        """The first rows, and the number of all rows."""
        first, *others = map(_read, self.files)
        return first.slice(0, rows), len(first) + sum(map(len, others))


def schema(path: Path) -> pyarrow.Schema:
    """The columns of a file."""
    from pyarrow import memory_map

    with memory_map(str(path)) as source:
        return _opened(source).schema


def _read(path: Path) -> pyarrow.Table:
    from pyarrow import memory_map

    from runtime.data.formats.parquet_file import decoded

    with memory_map(str(path)) as source:
        return shards.class_names(decoded(_opened(source).read_all()))


def _opened(source: pyarrow.MemoryMappedFile) -> pyarrow.RecordBatchReader:
    from pyarrow import ipc

    with_index = source.read(6) == b"ARROW1"
    source.seek(0)
    return ipc.open_file(source) if with_index else ipc.open_stream(source)
