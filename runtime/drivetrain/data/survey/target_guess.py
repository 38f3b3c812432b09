"""Chooses the column to predict: the named one, one with a typical name, or the last one with few values."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from drivetrain.data.formats import table_file
from drivetrain.data.labels import list_names
from drivetrain.data.survey.request import SurveyRequest
from drivetrain.data.survey.table_sample import ColumnProfile, TableSample
from drivetrain.errors import DataError
from drivetrain.job.draft import quote, quote_all

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
TIME_NAMES = ("time", "timestamp", "datetime", "date", "t", "ts", "fecha", "hora", "tiempo", "zeit", "datum")
_ID_NAME = re.compile(r"(^|_|\b)(id|uuid|guid|index|idx|nr|no|row)$|^unnamed|_id_|^id_", re.IGNORECASE)


@dataclass(frozen=True)
class TargetGuess:
    """The columns to predict."""

    names: tuple[str, ...]
    reason: str
    """Why these columns, for the draft."""
    others: tuple[str, ...] = ()
    """Other candidates."""

    @property
    def value(self) -> str:
        """The columns in YAML notation: a name, or a list of several."""
        return quote(self.names[0]) if len(self.names) == 1 else quote_all(self.names)

    @property
    def choice(self) -> list[str]:
        """A line about the other candidates."""
        if not self.others:
            return []
        candidates = list_names(self.others, 8)
        return [
            f"target {list_names(self.names)}: {self.reason}; other candidates: {candidates} (choose with --target)"
        ]


def is_identifier(column: ColumnProfile) -> bool:
    """Whether a column identifies its row: texts that never repeat, or a name such as `id` with many values."""
    if column.kind == "text" and not column.numeric and column.unique and column.filled >= 8:
        return True
    return bool(_ID_NAME.search(column.name)) and column.different > column.filled / 2


def find_named(request: SurveyRequest, sample: TableSample) -> TargetGuess | None:
    """The target that the user named; raises DataError if the table does not have it, or its value is constant."""
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
    return TargetGuess(tuple(dict.fromkeys(request.targets)), "as requested")


def guess_classes(columns: Iterable[ColumnProfile]) -> TargetGuess | None:
    """Guess which of the columns has the classes to predict; None if no column can be classes."""
    named, candidates = find_classes(columns)
    if named or not candidates:
        return named
    last = candidates[-1]
    reason = f"the last column with few values ({last.different})"
    return TargetGuess((last.name,), reason, tuple(column.name for column in candidates[:-1]))


def find_classes(columns: Iterable[ColumnProfile]) -> tuple[TargetGuess | None, list[ColumnProfile]]:
    """The column with a typical name of classes, if there is one, and all columns with values that are few and repeat."""
    columns = list(columns)
    candidates = [column for column in columns if column.classes and not is_identifier(column)]
    name = find_by_name([column for column in columns if column.trainable], CLASS_NAMES)
    other_columns = tuple(column.name for column in candidates if column.name != name)
    return TargetGuess((name,), "by its name", other_columns) if name else None, candidates


def guess_number(columns: Iterable[ColumnProfile]) -> TargetGuess | None:
    """Guess which of the columns has the numbers to predict; None if no column can."""
    candidates = [
        c for c in columns if c.kind == "number" and c.different > 1 and not is_identifier(c) and not c.refused
    ]
    named_like_target = find_named_number(candidates)
    name = named_like_target or (candidates[-1].name if candidates else "")
    other_columns = tuple(column.name for column in candidates if column.name != name)
    reason = "by its name" if named_like_target else "the last column of numbers"
    return TargetGuess((name,), reason, other_columns) if name else None


def find_named_number(columns: Sequence[ColumnProfile]) -> str:
    """The numeric column with a typical name of a target; empty if there is none."""
    ends = [column.name for column in columns if re.split(r"[\W_]+", column.name.casefold())[-1] in NUMBER_ENDS]
    return find_by_name(columns, NUMBER_NAMES) or (ends[-1] if ends else "")


def find_by_name(columns: Iterable[ColumnProfile], names: Sequence[str]) -> str:
    """The first column with one of these names, in the order of the names; empty if there is none."""
    by_folded_name = {column.name.strip().casefold(): column.name for column in columns}
    return next((by_folded_name[name] for name in names if name in by_folded_name), "")


def describe_values(columns: Iterable[ColumnProfile]) -> str:
    """How many different values the columns have, for messages."""
    return list_names([f"{c.name} has {c.different:,} different values in {c.filled:,} rows" for c in columns])
