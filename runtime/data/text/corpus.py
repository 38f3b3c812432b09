"""Reads the texts and labels of a file, and finds rows that cannot be used."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from runtime.data.bad_samples import BadSample
from runtime.data.formats import column_values, row_lines, table_file
from runtime.data.formats.csv_dialect import CsvFiles
from runtime.data.labels import alike, listed
from runtime.data.stateless_random import Ids
from runtime.errors import DataError

if TYPE_CHECKING:
    import pyarrow

MANY = 50
"""Up to this many distinct labels, a column is accepted as labels without further checks."""


@dataclass
class Corpus:
    """Usable rows of one or several files."""

    key: str
    """The spec key that names the file."""
    paths: list[Path]
    starts: list[int]
    """Index of the first usable row of each file."""
    texts: tuple[Any, ...]
    """Pyarrow text columns, one entry per usable row."""
    labels: dict[str, list[str | None]]
    """By column: the label of each usable row, as written; None if it has none."""
    rows: Ids
    """Number of each usable row in its file; the first is 1."""
    bad: list[BadSample]
    """Rows that cannot be used."""
    groups: list[str | None] | None = None
    """The group of each usable row, if the job has a column of them."""

    def __len__(self) -> int:
        return len(self.rows)

    def title(self, index: int) -> str:
        """Row and first words of one text."""
        most = 80 // len(self.texts)
        texts = (column[index].as_py() for column in self.texts)
        shown = " | ".join(f"{text[:most]}{'…' if len(text) > most else ''}" for text in texts)
        return f"{self.row(index)}: {shown}"

    def row(self, index: int) -> str:
        """File and row of one text."""
        return f"{self.paths[bisect_right(self.starts, index) - 1].name} row {self.rows[index]}"


def read(
    path: Path,
    key: str,
    columns: Sequence[str],
    labels: Mapping[str, str],
    text_key: str,
    files: CsvFiles,
    groups: str | None = None,
) -> Corpus:
    """Read the texts and labels of a file; rows without any text, or without any label, are bad samples.

    Args:
        path: a .csv, .tsv, .jsonl or .parquet file.
        key: the spec key that names the file.
        columns: the text columns.
        labels: the label columns, each with the spec key that names it; empty to read texts only.
        text_key: the spec key that names the text columns.
        files: how CSV files are written; gets what was found.
        groups: the column that says which rows belong together.

    Raises:
        DataError: if the file cannot be read, or a column is missing or does not hold text.
    """
    from pyarrow import compute

    wanted = {**dict.fromkeys(columns, text_key), **labels}
    every = wanted | ({groups: "data.groups"} if groups else {})
    table = table_file.read(path, key, wanted=every, only=True, text=every, csv=files)
    for name, option in wanted.items():
        _check_type(table, name, option, path)
    trimmed = {name: compute.utf8_trim_whitespace(table[name]) for name in wanted}
    filled = {
        name: compute.fill_null(compute.not_equal(cells, ""), False).to_numpy() for name, cells in trimmed.items()
    }
    texts = {name: filled.pop(name) for name in columns}
    # Of several texts, some may be empty: a report without a title is a report.
    # A row that has a label for some of the heads trains these.
    labelled = {" and ".join(labels): np.logical_or.reduce(list(filled.values()))} if labels else {}
    filled = {" and ".join(columns): np.logical_or.reduce(list(texts.values())), **labelled}
    good = np.logical_and.reduce(list(filled.values()))
    return Corpus(
        key,
        [path],
        [0],
        tuple(compute.fill_null(column_values.composed_text(table[name].filter(good)), "") for name in columns),
        {
            name: [label or None for label in column_values.texts(table[name]).filter(good).to_pylist()]
            for name in labels
        },
        np.flatnonzero(good) + 1,
        _bad(path, filled, good),
        column_values.texts(table[groups].filter(good)).to_pylist() if groups else None,
    )


def joined(sources: Sequence[Corpus]) -> Corpus:
    """Concatenate several files."""
    from pyarrow import chunked_array

    starts = np.cumsum([0, *map(len, sources)])[:-1].tolist()
    return Corpus(
        sources[0].key,
        [path for source in sources for path in source.paths],
        starts,
        tuple(
            chunked_array([chunk.cast("string") for part in column for chunk in part.chunks], "string")
            for column in zip(*(source.texts for source in sources), strict=True)
        ),
        {name: [label for source in sources for label in source.labels[name]] for name in sources[0].labels},
        np.concatenate([source.rows for source in sources]),
        [one for source in sources for one in source.bad],
    )


def _check_type(table: pyarrow.Table, name: str, option: str, path: Path) -> None:
    from pyarrow import types

    found = table.schema.field(name).type
    if types.is_null(found):
        raise DataError(f'{option}: column "{name}" of {path} is empty', "a text in most rows", "name another column")
    if not (types.is_string(found) or types.is_large_string(found) or types.is_string_view(found)):
        raise DataError(
            f'{option}: column "{name}" of {path} holds {found}, not text',
            "text, whole numbers or booleans",
            "write the column as text, or name another one",
        )


def _bad(path: Path, filled: Mapping[str, Any], good: Any) -> list[BadSample]:
    wrong = np.flatnonzero(~good)
    return [
        BadSample(
            f"{path} {row_lines.place(path, row + 1)}",
            f"{listed([n for n, full in filled.items() if not full[row]])} is empty",
        )
        for row in wrong.tolist()
    ]


def check_classes(labels: Sequence[str], classes: Sequence[str], column: str, option: str) -> list[str]:
    """Check the labels of one column; returns notes.

    Raises:
        DataError: if it has one class, or so many that it cannot be labels.
    """
    if len(classes) < 2:
        raise DataError(
            f'{option}: column "{column}" has {len(classes)} class: {listed(classes)}',
            "two classes or more",
            "remove the column, or add rows of another class",
        )
    if len(classes) > max(MANY, len(labels) // 2):
        raise DataError(
            f'{option}: column "{column}" has {len(classes):,} different values in {len(labels):,} rows, '
            f"such as {listed(classes, 3)}",
            "labels that repeat: classes",
            "name a column of labels; numbers to predict are a task of their own",
        )
    return [*_rare(labels, column), *alike(column, classes)]


def _rare(labels: Sequence[str], column: str) -> list[str]:
    alone = sorted(label for label, count in Counter(labels).items() if count == 1)
    return [f'"{column}": classes with a single row, which is used for training: {listed(alone)}'] * bool(alone)
