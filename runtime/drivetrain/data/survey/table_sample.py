"""Reads a table for a draft, with a profile of each column, and chooses the column to predict.

A small file is read completely, a large one only in its first rows. The target is the named column, a column with a
typical name, or the last column with few values.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from drivetrain.data.formats import column_values, table_file, times
from drivetrain.data.formats.csv_dialect import CsvFiles
from drivetrain.data.notes import list_names
from drivetrain.data.survey import settings
from drivetrain.data.survey.settings import KEY, SurveyRequest
from drivetrain.data.tables import column_roles, text_column
from drivetrain.errors import DataError, SpecError
from drivetrain.job.draft import Entry, quote, quote_all
from drivetrain.job.tables import TableData

if TYPE_CHECKING:
    import pyarrow

WHOLE_FILE_BYTES = 32 << 20
"""Largest file, in bytes, that is read completely."""
SAMPLED_ROWS = 5_000
"""Number of rows that are read from a larger file."""
MOST_TEXT_CLASSES = 50
"""Largest number of distinct texts of a column that is taken for classes."""
DATE = "a date"
"""Reason why a column of times is no feature."""
MOST_UNUSABLE_SHARE = 0.04
"""Largest share of rows with text or infinity in a numeric column; training skips these rows."""
MIN_TEXT_WORDS = 4
"""Smallest median number of words for which a text is more than a name."""


@dataclass(frozen=True)
class ColumnProfile:
    """Content of a column in the rows that were read."""

    name: str
    kind: str
    """Result of `column_values.kind`: number, text, nothing, time, or another type."""
    rows: int
    """Number of rows that were read."""
    filled: int
    """Number of rows with a usable value."""
    complete: bool
    """Whether all rows of the file were read."""
    different: int = 0
    """Number of different values."""
    words: float = 0.0
    """Median number of words per text; 0 for other kinds."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """Number of rows of each value, if there are few enough for classes."""
    refused: str = ""
    """Reason why a table job does not accept the column unchanged; empty if it does."""
    numeric: bool = False
    """Whether the column is text to be read as numbers."""
    digits: tuple[str, ...] = ()
    """Line on a text column whose cells mostly hold digits; else empty."""
    form: str = ""
    """Form of a column of times, as from `times.find_form`."""

    @property
    def classes(self) -> bool:
        """Whether the values are few and repeat often enough to be guessed as classes."""
        most = MOST_TEXT_CLASSES if self.kind == "text" else text_column.MOST_INTEGER_CLASSES
        is_repeated = 2 <= self.different < self.filled and self.different <= max(2, self.filled // 4)
        return bool(self.counts) and is_repeated and self.different <= most

    @property
    def trainable(self) -> bool:
        """Whether training would accept the column as classes on request."""
        if not self.counts or self.different > max(10, self.filled / 2):
            return False
        return not self.complete or (self.different > 1 and self.different < self.filled)

    @property
    def binary(self) -> bool:
        """Whether the column has no other values than 0 and 1."""
        return bool(self.counts) and set(self.counts) <= {"0", "1", "true", "false"}

    @property
    def long_text(self) -> bool:
        """Whether the column contains texts of several words that rarely repeat."""
        return self.kind == "text" and self.words >= MIN_TEXT_WORDS and self.different > self.filled / 2


@dataclass(frozen=True)
class TableSample:
    """Rows that were read, and profiles of the columns."""

    path: Path
    table: pyarrow.Table
    rows: int
    """Number of rows of the file; approximate if it was not read completely."""
    columns: dict[str, ColumnProfile]

    @property
    def complete(self) -> bool:
        """Whether all rows were read."""
        return len(self.table) == self.rows

    @property
    def size(self) -> str:
        """Number of rows and columns, for a comment."""
        rows = f"{self.rows:,} rows"
        if not self.complete:
            rows = f"about {rows}, of which {len(self.table):,} were read"
        return f"{rows}, {len(self.columns):,} columns"

    def lost(self, names: Sequence[str]) -> float:
        """Return the share of rows without a usable value in one of these columns."""
        is_usable = np.ones(len(self.table), np.bool_)
        for name in names:
            is_usable &= _usable_cells(self.table[name])
        return float(1 - is_usable.mean())


def read(path: Path, files: CsvFiles) -> TableSample:
    """Read a table, or the start of a large one.

    Raises:
        DataError: as from `table_file.read`.
    """
    files.keeps_zeros = True
    if path.exists() and path.stat().st_size > WHOLE_FILE_BYTES:
        table, rows = table_file.head(path, KEY, SAMPLED_ROWS, files)
        if path.suffix.lower() != ".parquet":
            # Estimated from the file size, so rounded to two digits.
            rows = max(len(table), round(rows, 2 - len(str(rows))))
    else:
        table = table_file.read(path, KEY, csv=files)
        rows = len(table)
    columns = {name: _profile(table, name, len(table) == rows) for name in table.column_names}
    return TableSample(path, table, rows, columns)


def _profile(table: pyarrow.Table, name: str, complete: bool) -> ColumnProfile:
    """Profile a column of the rows that were read; `complete` if these are all rows of the file."""
    column = table[name]
    kind = column_values.kind(column)
    form = times.recognize(column, name) or ""
    if form or kind not in ("number", "text"):
        refused = DATE if form else {"time": DATE, "nothing": "empty"}.get(kind, kind)
        filled, kind = len(column) - column.null_count, kind if kind == "number" else "time" if form else kind
        return ColumnProfile(name, kind, len(column), filled, complete, refused=refused, form=form)
    texts = column_values.texts(column)
    different = column_values.different(texts)
    is_integer = kind == "number" and all(
        text.lstrip("-").isdigit() or text in ("true", "false") for text in different[:1000]
    )
    can_be_classes = len(different) <= max(MOST_TEXT_CLASSES, len(texts) / 2) and (is_integer or kind == "text")
    counts = Counter(text for text in texts.to_pylist() if text is not None) if can_be_classes else {}
    median_words = _count_median_words(texts) if kind == "text" else 0.0
    filled = int(_usable_cells(column).sum())
    refused, numeric = _find_refusal(table, name, filled)
    all_counts = column_values.count_texts(column) if kind == "text" and not numeric else {}
    digits = tuple(text_column.note_digits(name, all_counts))
    return ColumnProfile(
        name, kind, len(column), filled, complete, len(different), median_words, counts, refused, numeric, digits
    )


def _usable_cells(column: pyarrow.ChunkedArray) -> column_values.Mask:
    """Return a mask of cells with text or a finite number; for other types, of all cells with a value."""
    if column_values.kind(column) == "number":
        return np.asarray(np.isfinite(column_values.numbers(column)[0]))
    texts = column_values.texts(column) if column_values.kind(column) == "text" else column
    return np.asarray(texts.is_valid().to_numpy(zero_copy_only=False) if hasattr(texts, "is_valid") else True)


def _count_median_words(texts: pyarrow.ChunkedArray) -> float:
    """Compute the median number of words of the texts; 0 if there are none."""
    from pyarrow import compute

    counts = compute.count_substring_regex(texts, r"\S+").to_numpy(zero_copy_only=False).astype(np.float64)
    present = counts[~np.isnan(counts)]
    return float(np.median(present)) if len(present) else 0.0


def _find_refusal(table: pyarrow.Table, name: str, filled: int) -> tuple[str, bool]:
    """Explain why a table job would refuse a column as a feature; also returns whether it is text with numbers."""
    if not filled or name in column_roles.find_index_columns(table):
        return "the index of a pandas data frame" if filled else "empty", False
    values, not_numbers = column_values.numbers(table[name])
    with np.errstate(invalid="ignore"):
        unusable_share = float((not_numbers | (np.abs(values) > column_values.LARGEST)).mean())
    if column_values.kind(table[name]) == "number" and unusable_share > MOST_UNUSABLE_SHARE:
        return "infinite in many rows", False
    try:
        # The target only needs another name.
        column_roles.assign_roles(table.select([name]), TableData(train="x", target=(f"not {name}",)), "the table")
    except DataError as error:
        reason = re.sub("^(is|has) |, of which .*", "", error.given.partition(" of the table ")[2])
        if not reason.startswith("are numbers"):
            return reason, False
        return ("", True) if unusable_share <= MOST_UNUSABLE_SHARE else ("numbers with text in many rows", False)
    return "", False


CLASS_NAMES = (
    *("label", "labels", "target", "class", "classes", "category", "y", "outcome", "species", "sentiment"),
    *("diagnosis", "survived", "churn", "exited", "approved", "activity"),
    *("etiqueta", "etiquetas", "clase", "categoria", "categoría", "objetivo", "klasse", "ziel", "kategorie"),
)
NUMBER_NAMES = ("target", "y", "price", "saleprice", "medv", "precio", "objetivo", "preis", "zielwert")
NUMBER_ENDS = ("price", "cost", "salary", "precio", "preis")
"""Last words of names such as `unit_price`."""
GROUP_NAMES = (
    *("group", "machine", "device", "sensor", "unit", "station", "subject", "patient", "session", "asset", "series"),
    *("grupo", "maquina", "máquina", "equipo", "dispositivo", "paciente", "gruppe", "maschine", "anlage", "gerät"),
)
MIN_PEOPLE = 10
"""Smallest number of values for which a column of a name such as `animal`, without `id`, is no feature."""
_PEOPLE = {
    *("patient", "subject", "person", "participant", "user", "author", "speaker", "animal", "specimen", "paciente"),
    *("sujeto", "persona", "usuario", "autor", "proband"),
}
_GROUPS = {
    *("source", "group", "video", "clip", "scene", "session", "sequence", "case", "object", "slide", "study", "track"),
    *("original", "grupo", "caso", "escena"),
}
"""Names of group columns, without `_id` and the like; a column with a name of the second set can also be a feature."""
_ID_NAME = re.compile(r"(^|_|\b)(id|uuid|guid|index|idx|nr|no|row)$|^unnamed|_id_|^id_", re.IGNORECASE)


REQUESTED, BY_NAME = "as requested", "by its name"


@dataclass(frozen=True)
class TargetGuess:
    """Columns to predict."""

    names: tuple[str, ...]
    reason: str
    """Reason for these columns, for the draft."""
    are_numbers: bool = False
    """Whether the columns are rather numbers than classes, if they can be both."""

    @property
    def value(self) -> str:
        """Columns in YAML notation: a name, or a list of names."""
        return quote(self.names[0]) if len(self.names) == 1 else quote_all(self.names)

    def list_choices(self, columns: Iterable[ColumnProfile]) -> list[str]:
        """Return a line about the other columns that could be predicted; empty without any, or if the user chose."""
        # Targets are mostly among the last columns.
        others = [c.name for c in columns if c.name not in self.names and (is_number(c) or can_be_classes(c))][::-1]
        if not others or self.reason == REQUESTED:
            return []
        candidates = list_names(others, 8)
        return [
            f"target {list_names(self.names)}: {self.reason}; other candidates: {candidates} (choose with --target)"
        ]


def can_be_classes(column: ColumnProfile) -> bool:
    """Return whether the values of a column repeat often enough to be guessed as classes."""
    return column.classes and not is_identifier(column)


def is_number(column: ColumnProfile) -> bool:
    """Return whether a column holds numbers that differ, and that can be used as they are."""
    return column.kind == "number" and column.different > 1 and not is_identifier(column) and not column.refused


def is_identifier(column: ColumnProfile) -> bool:
    """Return whether a column identifies its row: texts that never repeat, or a name such as `id` with many values."""
    if column.kind == "text" and not column.numeric and column.different == column.filled >= 8:
        return True
    return bool(_ID_NAME.search(column.name)) and column.different > column.filled / 2


def draft_groups(sample: TableSample, used: Sequence[str], noun: str, *, any_name: bool = False) -> list[Entry]:
    """Draft the key for a column of patients, videos or other groups of rows; empty without one.

    Without `id`, a column such as `group`, or `animal` with few values, is a feature, unless `any_name` rules features out.
    """
    for column in sample.columns.values():
        name = column.name.casefold()
        plain_name = re.sub(r"[ _.-]?(id|name|number|no|nr|key)$", "", name)
        is_likely = plain_name in _PEOPLE and column.different >= MIN_PEOPLE
        is_group = is_likely or (plain_name in _PEOPLE | _GROUPS and (any_name or name.endswith("id")))
        if is_group and column.name not in used and 2 < column.different <= column.filled * 2 / 3:
            reason = f"{column.different:,} groups; all {noun} of a group are on one side of the split"
            return [Entry("groups", quote(column.name), reason)]
    return []


def find_named(request: SurveyRequest, sample: TableSample) -> TargetGuess | None:
    """Find the target that the user named; raises DataError if the column is missing or constant."""
    if not request.targets:
        return None
    table_file.check_wanted(list(sample.columns), dict.fromkeys(request.targets, "--target"), sample.path)
    for name in request.targets:
        column = sample.columns[name]
        if column.kind not in ("number", "text") or (column.different < 2 and sample.complete):
            has_values = column.kind in ("number", "text")
            description = f"has {column.different} value" if has_values else f"holds: {column.refused}"
            raise DataError(
                f'--target {name}: column "{name}" of {sample.path} {description}',
                "a column of classes or numbers that differ between rows",
                "name another column",
            )
    names = tuple(dict.fromkeys(request.targets))
    return TargetGuess(names, REQUESTED, len(names) == 1 and not sample.columns[names[0]].classes)


def guess_classes(columns: Iterable[ColumnProfile]) -> TargetGuess | None:
    """Guess the column of the classes to predict; None if no column can be classes."""
    columns = list(columns)
    if name := find_by_name([column for column in columns if column.trainable], CLASS_NAMES):
        return TargetGuess((name,), BY_NAME)
    last = [column for column in columns if can_be_classes(column)][-1:]
    return TargetGuess((last[0].name,), f"the last column with few values ({last[0].different})") if last else None


def guess_number(columns: Iterable[ColumnProfile]) -> TargetGuess | None:
    """Guess the column of the numbers to predict; None if there is none."""
    candidates = [column for column in columns if is_number(column)]
    ends = [column.name for column in candidates if re.split(r"[\W_]+", column.name.casefold())[-1] in NUMBER_ENDS]
    if name := find_by_name(candidates, NUMBER_NAMES) or "".join(ends[-1:]):
        return TargetGuess((name,), BY_NAME, are_numbers=True)
    return TargetGuess((candidates[-1].name,), "the last column of numbers", are_numbers=True) if candidates else None


def choose_task(
    request: SurveyRequest,
    guess: TargetGuess,
    targets: Sequence[ColumnProfile],
    tasks: tuple[str, str],
    *,
    are_cells: bool = False,
) -> tuple[str, str]:
    """Choose one of two tasks, for classes and for numbers, and the kind of the targets: class, labels, cell or numbers.

    With `are_cells`, each cell of the column lists all labels of a row.

    Raises:
        SpecError: if the targets fit neither task, or not the requested one.
    """
    numbers = [(tasks[1], "numbers")] if all(column.kind == "number" for column in targets) else []
    if len(targets) > 1:
        classes = [(tasks[0], "labels")] if all(column.binary for column in targets) else []
    else:
        classes = [(tasks[0], "cell" if are_cells else "class")] if are_cells or targets[0].trainable else []
    for task, kind in [*numbers, *classes] if guess.are_numbers else [*classes, *numbers]:
        if request.task in (None, task):
            return task, kind
    values = [f"{c.name} has {c.different:,} different values in {c.filled:,} rows" for c in targets]
    raise SpecError(
        f"{KEY}: {list_names(values)}",
        "one column of classes or of numbers; several columns of 0 and 1, or several of numbers",
        "name other columns with --target",
    )


def describe_targets(targets: Sequence[ColumnProfile], kind: str) -> list[str]:
    """Return lines on the values of the columns to predict."""
    if kind == "class":
        counts, *single_samples = settings.describe_classes(targets[0].counts)
        return [f"{targets[0].name} has {counts}", *single_samples]
    if kind == "labels":
        return [f"{len(targets):,} labels: {list_names([column.name for column in targets], 8)}"]
    return [f"{column.name} has {column.different:,} different numbers" for column in targets]


def find_by_name(columns: Iterable[ColumnProfile], names: Sequence[str]) -> str:
    """Find the first column with one of these names, in the order of the names; empty if there is none."""
    by_folded_name = {column.name.strip().casefold(): column.name for column in columns}
    return next((by_folded_name[name] for name in names if name in by_folded_name), "")
