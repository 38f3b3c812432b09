"""Reads the texts and labels of files, finds rows that cannot be used, and provides their tokens as samples."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from drivetrain.data import copies, target_columns
from drivetrain.data.copies import Contents
from drivetrain.data.dataset import Inputs, Targets
from drivetrain.data.formats import column_values, csv_dialect, table_file
from drivetrain.data.notes import list_names
from drivetrain.data.partition import number_groups
from drivetrain.data.reading import SampleTable
from drivetrain.data.source import BadSample, Source
from drivetrain.data.stateless_random import Ids
from drivetrain.data.target_columns import TargetColumn
from drivetrain.data.text.encoded import Ragged, pad_inputs
from drivetrain.errors import DataError

if TYPE_CHECKING:
    import pyarrow

_SEPARATOR = "\x1f"
"""Separator between the texts of a row when rows are compared."""
_COMPARED_ROWS = 65_536
"""Number of rows whose texts are copied at a time to compare rows."""


@dataclass(kw_only=True)
class TextTable(SampleTable):
    """Usable rows of one or several files."""

    noun = "texts"
    texts: tuple[Any, ...]
    """Pyarrow text columns, one entry per usable row."""
    row_numbers: Ids
    file_names: Sequence[str]
    """Names of the files."""
    starts: Sequence[int] = (0,)
    """Index of the first usable row of each file."""

    def take(self, rows: Ids) -> tuple[Any, ...]:
        """Take the texts of some rows, as pyarrow columns."""
        return tuple(column.take(rows) for column in self.texts)

    def digest(self, rows: Ids, *, lower_case: bool = True) -> Contents:
        """Digest texts, without their Unicode form, the number of blanks, and with `lower_case` without capitals."""
        digests = [np.zeros(0, np.int64)]
        for start in range(0, len(rows), _COMPARED_ROWS):
            texts = self.take(rows[start : start + _COMPARED_ROWS])
            digests.append(copies.digest_contents(_normalize_texts(texts, lower_case)))
        return np.concatenate(digests)

    def title(self, row: int) -> str:
        """Return the file, row and first words of one text."""
        max_letters = 80 // len(self.texts)
        cells = (column[row].as_py() for column in self.texts)
        first_words = " | ".join(f"{cell[:max_letters]}{'…' if len(cell) > max_letters else ''}" for cell in cells)
        return f"{self.name_place(row)}: {first_words}"

    def name_place(self, row: int) -> str:
        """Return the file and row of one text."""
        return f"{self.file_names[bisect_right(self.starts, row) - 1]} row {self.row_numbers[row]}"

    def name_target_key(self, head: str) -> str:
        """Name the label column of a head."""
        return f'{self.source.key}: column "{self.targets[head].names[0]}"'


@dataclass(eq=False)
class TextSplit:
    """Some rows of a table, as tokens in memory."""

    table: TextTable
    rows: Ids
    """Indices into the table."""
    targets: Targets
    tokens: Ragged
    pad: int
    types: Ragged | None = None
    masked: ClassVar = True
    """The last input is a mask of real tokens (protocol `Masked`)."""

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """Number of tokens of each text."""
        return self.tokens.lengths

    def gather(self, ids: Ids) -> Inputs:
        """Return token ids, token types if the network has them, and attention mask (see `encoded.pad_inputs`)."""
        return pad_inputs(self.tokens, () if self.types is None else (self.types,), ids, self.pad)

    def contents(self) -> Contents:
        """Return a digest of each row's texts."""
        return self.table.digest(self.rows)

    def title(self, index: int) -> str:
        """Return the row and first words of one text."""
        return self.table.title(int(self.rows[index]))


def read(
    source: Source, columns: Sequence[str], labels: Mapping[str, str], group_column: str | None = None
) -> TextTable:
    """Read the texts and labels of a file; rows without any text, or without any label, are bad samples.

    `labels` has the label column of each head; without any, texts alone are read.

    Raises:
        DataError: if the file cannot be read, or a column is missing or does not hold text.
    """
    from pyarrow import compute

    path, is_new = source.path, source.key == "data"
    keys = {column: source.key if is_new else f"data.labels.{column}" for column in labels.values()}
    required = {**dict.fromkeys(columns, source.key if is_new else "data.text"), **keys}
    all_columns = required | ({group_column: "data.groups"} if group_column else {})
    table = table_file.read(path, source.key, required=all_columns, only=True, text=all_columns, csv=source.files)
    for name, option in required.items():
        _check_type(table, name, option, path)
    targets = {
        head: target_columns.read_targets(table, [name], classes=True, option=keys[name], source=str(path))
        for head, name in labels.items()
    }
    lacks = _find_empty_rows(table, columns, targets)
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
        table, targets = table.filter(~is_bad), {head: target.take(rows) for head, target in targets.items()}
    return TextTable(
        source=source,
        usable=np.arange(len(rows), dtype=np.int64),
        targets=targets,
        notes=source.check_bad(bad, len(is_bad)),
        groups=number_groups(column_values.texts(table[group_column]).to_pylist()) if group_column else None,
        group_column=group_column or "",
        texts=tuple(compute.fill_null(column_values.compose_text(table[name]), "") for name in columns),
        row_numbers=rows + 1,
        file_names=[path.name],
    )


def _find_empty_rows(table: Any, columns: Sequence[str], targets: Mapping[str, TargetColumn]) -> dict[str, Any]:
    """Find the rows without any text and the rows without any label; the keys name the columns."""
    from pyarrow import compute

    trimmed = (compute.fill_null(compute.utf8_trim_whitespace(table[name]), "") for name in columns)
    lacks = {" and ".join(columns): np.logical_and.reduce([compute.equal(cells, "").to_numpy() for cells in trimmed])}
    if targets:
        names = [target.names[0] for target in targets.values()]
        # A column that is both a text and a label counts as a text.
        is_empty = [target.indices == -1 for target in targets.values() if target.names[0] not in columns]
        lacks[" and ".join(names)] = np.logical_and.reduce(is_empty)
    return lacks


def join(tables: Sequence[TextTable]) -> TextTable:
    """Concatenate the texts of several files, without targets and groups."""
    from pyarrow import chunked_array

    if len(tables) == 1:
        return tables[0]
    texts = []
    for columns in zip(*(table.texts for table in tables), strict=True):
        chunks = [chunk.cast("string") for column in columns for chunk in column.chunks]
        texts.append(chunked_array(chunks, "string"))
    row_numbers = np.concatenate([table.row_numbers for table in tables])
    return TextTable(
        source=tables[0].source,
        usable=np.arange(len(row_numbers), dtype=np.int64),
        targets={},
        notes=[],
        texts=tuple(texts),
        row_numbers=row_numbers,
        file_names=[name for table in tables for name in table.file_names],
        starts=np.cumsum([0, *(len(table.usable) for table in tables)])[:-1].tolist(),
    )


def _normalize_texts(texts: Sequence[pyarrow.ChunkedArray], lower_case: bool) -> list[str]:
    """Join the texts of each row to compare rows: in NFKC, with single blanks, in lower case if requested."""
    from pyarrow import compute

    joined = compute.binary_join_element_wise(*(text.cast("string") for text in texts), _SEPARATOR)
    normalized = compute.utf8_normalize(joined, "NFKC")
    normalized = compute.utf8_lower(normalized) if lower_case else normalized
    rows: list[str] = compute.utf8_trim_whitespace(compute.replace_substring_regex(normalized, r"\s+", " ")).to_pylist()
    return rows


def _check_type(table: pyarrow.Table, name: str, option: str, path: Path) -> None:
    """Refuse a column that is empty or does not hold text."""
    data_type, column = table.schema.field(name).type, f'column "{name}" of {path}'
    kind = column_values.kind_of(data_type)
    if kind == "nothing":
        raise DataError(f"{column} is empty", "a text in most rows", "name another column", key=option)
    if kind != "text":
        possible, action = "text, whole numbers or booleans", "write the column as text, or name another one"
        raise DataError(f"{column} holds {data_type}, not text", possible, action, key=option)
