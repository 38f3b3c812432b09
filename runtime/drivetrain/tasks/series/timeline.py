"""Reads a long table: its rows sorted by series and time, missing features filled forward."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from drivetrain.data import target_columns
from drivetrain.data.formats import column_values, table_file
from drivetrain.data.notes import list_names
from drivetrain.data.partition import Groups, number_groups
from drivetrain.data.source import Source
from drivetrain.data.tables import column_roles, revealing_columns
from drivetrain.data.tables.column_roles import Roles
from drivetrain.data.target_columns import TargetColumn
from drivetrain.errors import DataError
from drivetrain.system.console import Detail
from drivetrain.tasks.series import timestamps
from drivetrain.tasks.series.timestamps import SeriesOrder

if TYPE_CHECKING:
    import pyarrow

MAX_LISTED_ROWS = 5
"""Largest number of rows with filled cells that a note lists."""


@dataclass(frozen=True)
class WindowLayout:
    """Columns of a long table, and the settings for cutting windows from its rows."""

    time: str
    features: tuple[str, ...]
    """Feature columns; if the job names none, empty until a table is read, then all other numeric columns."""
    label: tuple[str, ...]
    classes: bool
    group: str | None
    window: int
    stride: int
    max_gap: float | None
    date_format: str | None = None

    def to_json(self) -> dict[str, object]:
        """Return the layout as plain JSON values for `layout_from_json`."""
        return asdict(self) | {"features": list(self.features), "label": list(self.label)}


def layout_from_json(preprocessing: Mapping[str, Any]) -> WindowLayout:
    """Rebuild a layout from preprocessing that has the values of `WindowLayout.to_json` among others."""
    values = {name: preprocessing[name] for name in WindowLayout.__dataclass_fields__ if name in preprocessing}
    return WindowLayout(**values | {"features": tuple(values["features"]), "label": tuple(values["label"])})


@dataclass(frozen=True)
class Timeline:
    """Rows of one file that have a time and all features."""

    source: Source
    layout: WindowLayout
    values: column_values.Numbers
    """Shape (rows, features), float64, all finite."""
    order: SeriesOrder
    target: TargetColumn | None
    notes: list[str]
    groups: Groups | None = None
    """Number of each row's group, if the job has a group column."""

    def __len__(self) -> int:
        return len(self.values)


def read_timeline(source: Source, layout: WindowLayout, groups: str | None = None) -> Timeline:
    """Read, sort and fill a long table; `groups` is the column of groups that stay on one side of a split.

    Raises:
        DataError: if the table cannot be used.
    """
    table = _read_table(source, layout, groups)
    series_order, notes = timestamps.read_order(table, source, layout.time, layout.group, layout.date_format)
    if source.key == "data.train":
        layout = replace(layout, date_format=series_order.form)
    table = table.take(series_order.rows)
    row_groups = number_groups(column_values.texts(table[groups]).to_pylist()) if groups else None
    layout, feature_notes = _choose_features(table, source, layout, groups)
    values, is_known, fill_notes = _fill_forward(table, source, layout, series_order)
    target = None
    if source.labelled:
        target = target_columns.read_targets(
            table.filter(is_known),
            layout.label,
            classes=layout.classes,
            option=source.name_option("label"),
            source=str(source.path),
        )
        if source.key == "data.train":
            rows = np.setdiff1d(np.arange(int(is_known.sum())), list(target.bad))
            columns = Roles(list(layout.features))
            fill_notes += revealing_columns.note_revealing(
                table.filter(is_known), columns, target, rows, [], "data.features without it"
            )
    return Timeline(
        source,
        layout,
        values,
        series_order.keep_rows(is_known),
        target,
        [*notes, *feature_notes, *fill_notes],
        None if row_groups is None else row_groups[is_known],
    )


def _read_table(source: Source, layout: WindowLayout, groups: str | None) -> pyarrow.Table:
    """Read the columns of the layout, or all columns if it has no features."""
    required = dict.fromkeys(layout.features, source.name_option("features")) | {
        layout.time: source.name_option("time")
    }
    if source.labelled:
        required |= dict.fromkeys(layout.label, source.name_option("label"))
    names = {option: name for option, name in (("group", layout.group), ("groups", groups)) if name}
    required |= {name: source.name_option(option) for option, name in names.items()}
    text = [*names.values(), *(layout.label if layout.classes else ())]
    only = bool(layout.features)
    return table_file.read(source.path, source.key, required=required, only=only, text=text, csv=source.files)


def _choose_features(
    table: pyarrow.Table, source: Source, layout: WindowLayout, groups: str | None
) -> tuple[WindowLayout, list[str]]:
    """Check the features of the layout, or choose them by type; returns the layout, and notes on the choice."""
    if layout.features:
        for name in layout.features:
            column_values.check_kind(table[name], name, source.name_option("features"), str(source.path))
        return layout, []
    role_columns = {layout.time, layout.group, groups, *layout.label}
    other_columns = [name for name in table.column_names if name not in role_columns]
    index_columns = column_roles.find_index_columns(table)
    features = tuple(
        name for name in other_columns if column_values.kind(table[name]) == "number" and name not in index_columns
    )
    if not features:
        raise DataError(
            f"{source.path} has no column of numbers beside time, group and label",
            f"columns of numbers; it has: {list_names(other_columns) or 'no others'}",
            "add columns, or name them",
            key=source.name_option("features"),
        )
    unused = [name for name in other_columns if name not in features and name not in index_columns]
    notes = [
        f"{len(features)} features: {list_names(features, 8)}",
        *(
            f'"{name}" is the index of a pandas data frame, so it is no feature'
            for name in index_columns
            if name in other_columns
        ),
    ]
    if unused:
        notes.append(f"not numeric, so not used as features: {list_names(unused)}")
    return replace(layout, features=features), notes


def _fill_forward(
    table: pyarrow.Table, source: Source, layout: WindowLayout, series_order: SeriesOrder
) -> tuple[column_values.Numbers, column_values.Mask, list[str]]:
    """Fill cells forward; returns the values of the rows without a gap, a mask of these rows, and notes.

    A cell that is empty, infinite or not a number gets the last value before it in the same series, if no time step in
    between is longer than `max_gap`. Rows before the first value are dropped.
    """
    values = np.empty((len(table), len(layout.features)))
    is_known = np.ones(len(table), np.bool_)
    reasons: dict[int, list[str]] = {}
    for index, name in enumerate(layout.features):
        column, _ = column_values.numbers(table[name])
        with np.errstate(invalid="ignore"):
            is_number = np.abs(column) <= column_values.LARGEST
        if is_number.all():
            values[:, index] = column
            continue
        for row in np.flatnonzero(~is_number).tolist():
            cell = "empty" if table[name][row].as_py() is None else column_values.format_cell(table[name], row)
            reasons.setdefault(row, []).append(f"{name} is {cell}")
        last_row_with_number = np.maximum.accumulate(np.where(is_number, np.arange(len(is_number)), -1))
        has_value = last_row_with_number >= series_order.find_stretch_starts(layout.max_gap)
        values[:, index] = np.where(has_value, column[last_row_with_number], 0.0)
        is_known &= has_value
    if not is_known.any():
        raise DataError(
            f"no row of {source.path} has a value of every feature",
            "numbers in all feature columns",
            f"leave the empty columns out: list the others in {source.name_option('features')}",
            key=source.key,
        )
    return values[is_known], is_known, _describe_filled(source, reasons, is_known, series_order)


def _describe_filled(
    source: Source, reasons: dict[int, list[str]], is_known: column_values.Mask, series_order: SeriesOrder
) -> list[str]:
    """Check the share of rows with filled cells against the budget; returns notes on them and on dropped rows."""
    filled_rows = [
        source.describe_bad_row(int(series_order.rows[row]), "; ".join(reasons[row])) for row in sorted(reasons)
    ]
    source.check_bad(filled_rows, len(series_order))
    if not filled_rows:
        return []
    unlisted_count = len(filled_rows) - MAX_LISTED_ROWS
    listed_rows = [Detail(f"filled: {row}") for row in filled_rows[:MAX_LISTED_ROWS]]
    head = (
        f"{source.key}: {len(filled_rows):,} of {len(series_order):,} rows have empty cells, filled with the last value "
        "before"
    )
    notes = [head, *listed_rows]
    if unlisted_count > 0:
        notes.append(Detail(f"filled: and {unlisted_count:,} more"))
    skipped_count = int((~is_known).sum())
    if skipped_count:
        notes.append(
            f"{source.path.name}: {skipped_count:,} rows before the first value of their series, or behind a gap in it, are skipped"
        )
    return notes
