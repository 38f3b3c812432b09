"""Decides which columns of a table are numbers, which are categories, and which cannot be used."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from drivetrain.data.formats import column_values, csv_dialect, number_marks, times
from drivetrain.data.notes import list_names
from drivetrain.data.tables import text_column
from drivetrain.data.tables.date_features import DateFeatures
from drivetrain.errors import DataError
from drivetrain.job.tables import TableData
from drivetrain.system.files import parse_json

if TYPE_CHECKING:
    import pyarrow

MIN_NUMBERED_ROWS = 20
"""Smallest number of rows for which equal steps other than 1 count as row numbers."""
_INDEX_NAME = re.compile(r"__index_level_\d+__|Unnamed: 0(\.\d+)*")
"""Names of columns that pandas writes for an index without a name, in Parquet and in CSV."""


@dataclass
class Roles:
    """Names of the numeric and the categorical columns, each in the order of the file."""

    numeric: list[str] = field(default_factory=list)
    categorical: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    """Notes for the user about single columns."""

    @property
    def names(self) -> list[str]:
        """All columns, the numeric ones first."""
        return [*self.numeric, *self.categorical]

    def notes(self) -> list[str]:
        """Return a note that lists both kinds of columns, and the notes on single columns."""
        parts = [(self.numeric, "numeric"), (self.categorical, "categorical")]
        return [
            "; ".join(f"{len(names)} {kind}: {list_names(names, 8)}" for names, kind in parts if names),
            *self.remarks,
        ]


def assign_roles(table: pyarrow.Table, data: TableData, source: str) -> Roles:
    """Assign a role to each column, as the job says or else by its type; the table has no ignored columns.

    Raises:
        DataError: for dates, identifiers, numeric columns with some text, and types that are neither number nor text.
    """
    roles, from_dates = Roles(), DateFeatures(data.dates).names
    index_columns = set(find_index_columns(table)).difference(
        data.features or (), data.numeric or (), data.categorical or ()
    )
    for name in table.column_names:
        if (
            name in data.target
            or name == data.groups
            or (data.features and name not in data.features and name not in from_dates)
        ):
            continue
        if name in index_columns:
            roles.remarks.append(
                f'"{name}" is the index of a pandas data frame, so it is no feature; data.numeric or data.categorical can make it one'
            )
            continue
        column = table[name]
        if name in from_dates:
            roles.numeric.append(name)
        elif name in (data.numeric or ()):
            column_values.check_kind(column, name, "data.numeric", source)
            roles.numeric.append(name)
            if column_values.kind(column) == "text" and (
                counts := number_marks.count_missing_marks(column_values.texts(column))
            ):
                roles.remarks.append(number_marks.describe_missing_marks(name, counts))
        elif name in (data.categorical or ()):
            column_values.check_kind(column, name, "data.categorical", source, dates=True)
            roles.categorical.append(name)
        elif column_values.kind(column) == "text":
            _check_text(column, name, source)
            roles.categorical.append(name)
            roles.remarks += text_column.note_digits(name, column_values.count_texts(column))
        else:
            _check_not_text(column, name, source)
            roles.numeric.append(name)
    if not roles.numeric and not roles.categorical:
        raise DataError(
            f"{source} has no columns to predict from",
            "at least one feature column",
            "add columns, or remove some from data.ignore",
            key="data.features",
        )
    return roles


def find_index_columns(table: pyarrow.Table) -> list[str]:
    """Find the columns of a table that are the index of a pandas data frame, by its metadata or by their names."""
    try:
        pandas_columns = parse_json((table.schema.metadata or {})[b"pandas"], dict)["index_columns"]
    except (KeyError, ValueError):
        pandas_columns = []
    index_names = (
        {name for name in pandas_columns if isinstance(name, str)} if isinstance(pandas_columns, list) else set()
    )
    return [name for name in table.column_names if name in index_names or _INDEX_NAME.fullmatch(name)]


def _check_text(column: pyarrow.ChunkedArray, name: str, source: str) -> None:
    """Refuse a text column that is mostly numbers, or has a different value in nearly every row."""
    from pyarrow import array, string

    texts = column_values.texts(column)
    filled_count = len(texts) - texts.null_count
    distinct_texts = column_values.different(texts)
    if number_marks.have_leading_zeros(texts):
        text_column.check_distinct(distinct_texts, filled_count, name, source)
        return
    # Most text columns have few distinct values and no numbers, so only columns with a number are read in full.
    if not np.isnan(
        column_values.numbers(array(set(distinct_texts).difference(column_values.TRUTH), string()))[0]
    ).all():
        values, not_numbers = column_values.numbers(column)
        if (~np.isnan(values)).sum() >= text_column.NUMBERS_SHARE * filled_count:
            row = int(not_numbers.argmax())
            first_text = f"{csv_dialect.name_row(source, row + 1)} has {column_values.format_cell(column, row)}"
            raise text_column.mixed_numbers_error(name, source, int(not_numbers.sum()), first_text)
    text_column.check_distinct(distinct_texts, filled_count, name, source)


def _check_not_text(column: pyarrow.ChunkedArray, name: str, source: str) -> None:
    """Refuse a column of dates, lists and the like, and integers that only count the rows."""
    from pyarrow import types

    if column_values.kind(column) == "time":
        raise text_column.date_column_error(name, source, str(column.type), times.recognize(column, name))
    column_values.check_kind(column, name, "data.train", source)
    if types.is_integer(column.type) and not column.null_count and len(column) > 2:
        steps = np.diff(column_values.numbers(column)[0])
        # A few numbers at equal distances may be a measurement, and counts of seconds are times.
        is_numbering = steps[0] == 1 or (
            steps[0] and len(column) >= MIN_NUMBERED_ROWS and not times.recognize(column, name)
        )
        if is_numbering and (steps == steps[0]).all():
            in_steps = "" if steps[0] == 1 else f", in steps of {steps[0]:,.0f}"
            raise DataError(
                f'column "{name}" of {source} is a row number{in_steps}',
                "columns with information about the row",
                f"add {name} to data.ignore, or to data.numeric if it is a measurement",
                key="data.train",
            )
