"""Reads a manifest: a table with a path, or an image, and a target in each row."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pyarrow
from pyarrow import chunked_array, compute, string, types

from drivetrain.data import file_paths, labels, target_columns
from drivetrain.data.formats import column_values, csv_dialect, table_file, table_paths
from drivetrain.data.formats.csv_dialect import CsvFiles
from drivetrain.data.source import BadSample
from drivetrain.data.target_columns import TargetColumn
from drivetrain.errors import DataError
from drivetrain.tasks.image import IMAGES, image_column
from drivetrain.tasks.image.image_column import ImageCells
from drivetrain.tasks.image.image_files import Listing
from drivetrain.tasks.image.image_targets import LabelForm
from drivetrain.tasks.modality import FileKind

Reasons = dict[int, str]
"""Reasons why rows cannot be used, by row."""


def read(
    file: Path, path_column: str, form: LabelForm | None, key: str, files: CsvFiles, kind: FileKind = IMAGES
) -> Listing:
    """Read a manifest; whitespace around paths and labels is stripped, a label 007 stays 007.

    Without a form no targets are read, and a row needs only a path. If one cell has all labels, an empty cell is an
    image without a label.

    Raises:
        DataError: if the file is not a table with these columns, or the form of the labels is not clear; names `key`.
    """
    columns = form.columns if form else ()
    rows = Listing(os.path.dirname(file) or ".")
    embedded_column = image_column.find(file, path_column, key) if kind.can_be_in_tables else ""
    if embedded_column not in ("", path_column):
        rows.notes.append(f'{key}: the images are those in column "{embedded_column}"')
    path_column = embedded_column or path_column
    table = _read_columns(file, path_column, form, key, files, paths=not embedded_column)
    if embedded_column:
        cells = table[embedded_column]
        paths = image_column.name_cells(cells, file)
        named_files: Iterable[str] = image_column.list_named_files(cells, range(len(cells)))
    else:
        texts = _read_text(table, path_column, file, key)
        paths, changes = file_paths.find_paths(file.parent, texts, path_column, key, kind.extensions)
        rows.notes += changes
        named_files = filter(None, paths)
    if form:
        # A list without targets comes from the user of `predict`; nothing is learned from it, so it is not checked.
        table_paths.check_named_files(file, named_files, key)
    target = read_target(rows, table, form, file, key) if form else None
    reasons = _combine_reasons(paths, path_column, target.bad if target else {})
    keep = [row for row, reason in enumerate(reasons) if not reason]
    rows.bad = [
        BadSample(f"{file} {csv_dialect.name_row(file, row + 1)}", reason)
        for row, reason in enumerate(reasons)
        if reason
    ]
    rows.names, rows.numbers = [paths[row] for row in keep], keep
    if not rows.names:
        first = f", first {rows.bad[0]}" if rows.bad else ""
        raise DataError(
            f"{file} has no row with {' and '.join((path_column, *columns))} ({len(rows.bad):,} rows in all){first}",
            f"one row for each {kind.noun}",
            "check how the file was written",
            key=key,
        )
    rows.target = target.take(keep) if target else None
    if embedded_column:
        rows.cells = ImageCells(file, embedded_column, table[embedded_column], tuple(keep))
    if form and form.groups:
        names = _read_names(table, form.groups, file, key)
        rows.groups = [names[row] for row in keep]
    return rows


def _read_columns(
    file: Path, path_column: str, form: LabelForm | None, key: str, files: CsvFiles, *, paths: bool
) -> pyarrow.Table:
    """Read the required columns; `paths` says whether the images are named by paths."""
    columns = form.columns if form else ()
    options = {path_column: "data.path_column"} | dict.fromkeys(columns, "data.label_column")
    if form and form.groups:
        options |= {form.groups: "data.groups"}
    text = [
        *((path_column,) if paths else ()),
        *([form.groups] if form and form.groups else ()),
        *(columns if form and (form.kind == "class" or form.in_a_cell) else ()),
    ]
    return table_file.read(file, key, required=options, only=True, text=text, csv=files)


def _combine_reasons(paths: list[str], path_column: str, target_reasons: Reasons) -> list[str]:
    """Explain why each row cannot be used; empty text for usable rows."""
    reasons = [f"{path_column} is empty" if not path else "" for path in paths]
    for row, reason in target_reasons.items():
        both = reason.endswith(" is empty") and reasons[row]
        reasons[row] = f"{path_column} and {reason}" if both else reason if not reasons[row] else reasons[row]
    return reasons


def read_target(rows: Listing, table: pyarrow.Table, form: LabelForm, file: Path, key: str) -> TargetColumn:
    """Read the targets of all rows of a table; the separator of the labels is stored in `rows`.

    Raises:
        DataError: if the form of the labels is not clear; names `key`.
    """
    if form.kind == "class":
        cells = _read_names(table, form.columns[0], file, key)
        if form.ask:
            labels.check_cells_are_classes([cell for cell in cells if cell], form.columns[0], file)
        return target_columns.of_classes(cells, form.columns[0])
    if form.in_a_cell:
        return target_columns.of_labels(_read_label_sets(rows, table, form, file, key))
    are_labels = form.kind == "labels"
    target = target_columns.read_targets(
        table, form.columns, classes=are_labels, option="data.label_column", source=str(file)
    )
    if are_labels:
        rows.unsure = int((np.isnan(target.numbers) | (target.numbers == -1)).any(axis=1).sum())
    return target


def _read_label_sets(
    rows: Listing, table: pyarrow.Table, form: LabelForm, file: Path, key: str
) -> list[tuple[str, ...]]:
    column = form.columns[0]
    if types.is_list(table[column].type) or types.is_large_list(table[column].type):
        lists = table[column].to_pylist()
        raw_sets = (tuple(str(name).strip() for name in names or () if name is not None) for names in lists)
        return _unify_spelling([tuple(filter(None, names)) for names in raw_sets])
    cells = _read_text(table, column, file, key)
    rows.separator = labels.find_separator(cells, column, file, form.separator)
    return _unify_spelling([labels.split_labels(cell, rows.separator) for cell in cells])


def _unify_spelling(sets: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Spell the labels of each row as the classes of a table: 12.0 is 12, True is true. Each label occurs once."""
    flat = [name for names in sets for name in names]
    spelled = iter(column_values.texts(chunked_array([flat], string())).to_pylist())
    return [tuple(dict.fromkeys(filter(None, [next(spelled) for _ in names]))) for names in sets]


def _read_names(table: pyarrow.Table, column: str, file: Path, key: str) -> list[str]:
    """Read classes or groups, spelled as the classes of a table; empty text for no value."""
    values = table[column]
    # Whole numbers in a column with gaps are read as fractions.
    is_integer = types.is_floating(values.type) and compute.all(compute.equal(compute.floor(values), values)).as_py()
    cells = values if is_integer else chunked_array([_read_text(table, column, file, key)], string())
    return [name or "" for name in column_values.texts(cells).to_pylist()]


def _read_text(table: pyarrow.Table, column: str, file: Path, key: str) -> list[str]:
    """Read a column as stripped text; empty text for no value."""
    values = table[column]
    if not (types.is_string(values.type) or types.is_large_string(values.type) or types.is_null(values.type)):
        lists = types.is_list(values.type) or types.is_large_list(values.type)
        raise DataError(
            f'column "{column}" of {file} is {values.type}',
            "text, integers or truth values" + (", or lists of labels with multi_label: true" if lists else ""),
            "add `multi_label: true` to data" if lists else "write the column as text",
            key=key,
        )
    return [str(cell) for cell in compute.utf8_trim_whitespace(values.cast(string()).fill_null("")).to_pylist()]
