"""Reads the texts and labels of files, and finds rows that cannot be used."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from drivetrain.data import target_columns
from drivetrain.data.formats import column_values, csv_dialect, table_file
from drivetrain.data.formats.csv_dialect import CsvFiles
from drivetrain.data.notes import list_names
from drivetrain.data.source import BadSample
from drivetrain.data.stateless_random import Ids
from drivetrain.data.target_columns import TargetColumn
from drivetrain.errors import DataError

if TYPE_CHECKING:
    import pyarrow


@dataclass
class Corpus:
    """Usable rows of one or several files."""

    key: str
    """Spec key that names the file."""
    paths: list[Path]
    starts: list[int]
    """Index of the first usable row of each file."""
    texts: tuple[Any, ...]
    """Pyarrow text columns, one entry per usable row."""
    labels: dict[str, TargetColumn]
    """Label of each usable row, by column; a row may have no label in some of them."""
    rows: Ids
    """Number of each usable row in its file; the first is 1."""
    bad: list[BadSample]
    """Rows that cannot be used."""
    groups: list[str | None] | None = None
    """Group of each usable row, if the job has a group column."""

    def __len__(self) -> int:
        return len(self.rows)

    def title(self, index: int) -> str:
        """Return the row and first words of one text."""
        max_letters = 80 // len(self.texts)
        cells = (column[index].as_py() for column in self.texts)
        first_words = " | ".join(f"{cell[:max_letters]}{'…' if len(cell) > max_letters else ''}" for cell in cells)
        return f"{self.place(index)}: {first_words}"

    def place(self, index: int) -> str:
        """Return the file and row of one text."""
        return f"{self.paths[bisect_right(self.starts, index) - 1].name} row {self.rows[index]}"


def read(
    path: Path,
    key: str,
    columns: Sequence[str],
    label_keys: Mapping[str, str],
    text_key: str,
    files: CsvFiles,
    group_column: str | None = None,
) -> Corpus:
    """Read the texts and labels of a file; rows without any text, or without any label, are bad samples.

    Args:
        label_keys: the label columns, each with the spec key that names it; empty to read texts only.
        text_key: the spec key that names the text columns.
        group_column: the column of groups that belong together.

    Raises:
        DataError: if the file cannot be read, or a column is missing or does not hold text.
    """
    from pyarrow import compute

    required = {**dict.fromkeys(columns, text_key), **label_keys}
    all_columns = required | ({group_column: "data.groups"} if group_column else {})
    table = table_file.read(path, key, required=all_columns, only=True, text=all_columns, csv=files)
    for name, option in required.items():
        _check_type(table, name, option, path)
    labels = {
        name: target_columns.read_targets(table, [name], classes=True, option=option, source=str(path))
        for name, option in label_keys.items()
    }
    lacks = _find_empty_rows(table, columns, labels)
    is_bad = np.logical_or.reduce(list(lacks.values()))
    bad = [
        BadSample(
            f"{path} {csv_dialect.name_row(path, row + 1)}",
            f"{list_names([name for name, lacks_part in lacks.items() if lacks_part[row]])} is empty",
        )
        for row in np.flatnonzero(is_bad).tolist()
    ]
    rows = np.flatnonzero(~is_bad)
    if bad:
        table, labels = table.filter(~is_bad), {name: target.take(rows) for name, target in labels.items()}
    return Corpus(
        key=key,
        paths=[path],
        starts=[0],
        texts=tuple(compute.fill_null(column_values.compose_text(table[name]), "") for name in columns),
        labels=labels,
        rows=rows + 1,
        bad=bad,
        groups=column_values.texts(table[group_column]).to_pylist() if group_column else None,
    )


def _find_empty_rows(table: Any, columns: Sequence[str], labels: Mapping[str, TargetColumn]) -> dict[str, Any]:
    """Find the rows without any text and the rows without any label; the keys name the columns."""
    from pyarrow import compute

    trimmed = (compute.fill_null(compute.utf8_trim_whitespace(table[name]), "") for name in columns)
    lacks = {" and ".join(columns): np.logical_and.reduce([compute.equal(cells, "").to_numpy() for cells in trimmed])}
    if labels:
        # A column that is both a text and a label counts as a text.
        is_empty = [target.indices == -1 for name, target in labels.items() if name not in columns]
        lacks[" and ".join(labels)] = np.logical_and.reduce(is_empty)
    return lacks


def join(sources: Sequence[Corpus]) -> Corpus:
    """Concatenate several files, without groups: only training files have groups, and these are not joined."""
    from pyarrow import chunked_array

    return Corpus(
        key=sources[0].key,
        paths=[path for source in sources for path in source.paths],
        starts=np.cumsum([0, *map(len, sources)])[:-1].tolist(),
        texts=tuple(
            chunked_array([chunk.cast("string") for part in column for chunk in part.chunks], "string")
            for column in zip(*(source.texts for source in sources), strict=True)
        ),
        labels={
            name: target_columns.of_classes(
                [label for source in sources for label in source.labels[name].list_names(np.arange(len(source)))], name
            )
            for name in sources[0].labels
        },
        rows=np.concatenate([source.rows for source in sources]),
        bad=[sample for source in sources for sample in source.bad],
    )


def _check_type(table: pyarrow.Table, name: str, option: str, path: Path) -> None:
    """Refuse a column that is empty or does not hold text."""
    data_type, column = table.schema.field(name).type, f'column "{name}" of {path}'
    kind = column_values.kind_of(data_type)
    if kind == "nothing":
        raise DataError(f"{column} is empty", "a text in most rows", "name another column", key=option)
    if kind != "text":
        possible, action = "text, whole numbers or booleans", "write the column as text, or name another one"
        raise DataError(f"{column} holds {data_type}, not text", possible, action, key=option)
