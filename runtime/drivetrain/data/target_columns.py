"""Reads targets from the columns of a table: a class, several labels, or numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from drivetrain.data.dataset import NO_LABEL, Head
from drivetrain.data.formats import column_values
from drivetrain.data.labels import index_labels, match_labels, sort_class_names
from drivetrain.data.notes import list_names
from drivetrain.data.scales import FIELDS, NameRow, Scale, collect_fields, fit_scale, scales_from_json
from drivetrain.data.stateless_random import Ids
from drivetrain.errors import DataError

if TYPE_CHECKING:
    import pyarrow

MAX_CLASSES_OF_FEW_ROWS = 10
"""Largest number of distinct values that are always accepted as classes, however few rows there are."""


@dataclass(frozen=True)
class TargetColumn:
    """Targets of all samples of a file, as written there."""

    names: tuple[str, ...]
    """Columns; for labels that are listed in a cell, the labels."""
    numbers: column_values.Numbers
    """Shape (N, names), float64; empty for single-label classification."""
    several: bool
    """Whether the numbers are labels of a multi-label classification: 0 or 1."""
    bad: dict[int, str]
    """Reason why a row has no usable target, by row."""
    classes: Sequence[str] = ()
    """The different classes of a single-label classification."""
    indices: Ids | None = None
    """Index of each row in `classes`, -1 for an empty cell; None without classes."""
    are_listed: bool = False
    """Whether the labels of a sample are listed in a cell, so that another file may lack some."""

    def take(self, rows: Sequence[int] | Ids) -> TargetColumn:
        """Take some rows, which are usable."""
        indices = None if self.indices is None else self.indices[list(rows)]
        return replace(self, numbers=self.numbers[list(rows)], indices=indices, bad={})

    def find_filled(self) -> Ids:
        """Find the rows whose cell has a class."""
        assert self.indices is not None
        return np.flatnonzero(self.indices >= 0)

    def list_names(self, rows: Ids) -> list[str]:
        """List the class of each of some rows, as written; empty for an empty cell."""
        assert self.indices is not None
        names = (*self.classes, "")  # an empty cell has index -1
        return [names[index] for index in self.indices[rows].tolist()]


def of_classes(cells: Sequence[str], column: str) -> TargetColumn:
    """Return targets with the class of each row as text; a row with an empty text is bad."""
    number_of: dict[str, int] = {}
    indices = [number_of.setdefault(cell, len(number_of)) if cell else -1 for cell in cells]
    bad = {row: f"{column} is empty" for row, cell in enumerate(cells) if not cell}
    no_numbers = np.empty((len(cells), 0))
    return TargetColumn((column,), no_numbers, False, bad, tuple(number_of), np.array(indices, np.int64))


def of_labels(sets: Sequence[Sequence[str]]) -> TargetColumn:
    """Return targets with any number of labels in each row."""
    names = sort_class_names(name for labels in sets for name in labels)
    index_of = {name: index for index, name in enumerate(names)}
    numbers = np.zeros((len(sets), len(names)))
    for row, labels in enumerate(sets):
        numbers[row, [index_of[name] for name in labels]] = 1
    return TargetColumn(names, numbers, True, {}, are_listed=True)


@dataclass(frozen=True)
class Strata:
    """Class of each sample, used to stratify a split."""

    numbers: Ids
    """Class numbers from 0, in the order of first occurrence, shape (N,); all 0 without classes."""
    classes: Sequence[str]
    """Classes in the order of their numbers; empty without classes."""


def read_targets(
    table: pyarrow.Table, names: Sequence[str], *, classes: bool, option: str, source: str
) -> TargetColumn:
    """Read the target columns of a table; several columns of classes are labels of 0 and 1.

    `option` is the spec key that names the columns, and `source` the file, for messages.

    Raises:
        DataError: if a column's type cannot be a target.
    """
    for name in names:
        column_values.check_kind(table[name], name, option, source)
    if classes and len(names) == 1:
        texts = _read_class_texts(table[names[0]], names[0], option, source)
        bad = dict.fromkeys(np.flatnonzero(texts.is_null()).tolist(), f"{names[0]} is empty")
        class_names, indices = column_values.different(texts), column_values.value_numbers(texts)
        return TargetColumn(tuple(names), np.empty((len(table), 0)), False, bad, class_names, indices)
    columns, bad = [], {}
    for name in names:
        values, is_wrong = column_values.numbers(table[name])
        columns.append(values)
        if classes:
            is_wrong = is_wrong | (np.isfinite(values) & (values != 0) & (values != 1))
        bad |= dict.fromkeys(np.flatnonzero(np.isnan(values)).tolist(), f"{name} is empty")
        bad |= find_bad_numbers(table[name], name, values, is_wrong, "0 or 1" if classes else "a number")
    return TargetColumn(tuple(names), np.stack(columns, axis=1), classes, bad)


def build_head(target: TargetColumn, rows: Ids, train: Ids, key: str) -> Head:
    """Build the head for the targets, with the classes of the usable `rows` or the scale of numbers of training rows.

    Raises:
        DataError: if there is nothing to learn: a single class, or a label or number that never changes.
    """
    if target.indices is not None:
        return Head("", classes=list_classes(target, rows, key))
    if target.are_listed:  # other labels are those of images that cannot be read
        used = np.flatnonzero(target.numbers[rows].any(axis=0)).tolist()
        target = replace(target, names=tuple(target.names[index] for index in used), numbers=target.numbers[:, used])
    values = target.numbers[train]
    constant_names = [name for name, column in zip(target.names, values.T, strict=True) if column.min() == column.max()]
    if constant_names:
        kind = "label" if target.several else "number"
        raise DataError(
            f"{list_names(constant_names)} is {values[0, target.names.index(constant_names[0])]:g} in all {len(train):,} training rows",
            f"a {kind} that differs between rows",
            f"remove {constant_names[0]}, or add rows",
            key=key,
        )
    if target.several:
        return Head("", classes=target.names, several=True)
    spread = values.std(axis=0)
    if not spread.all():
        name = target.names[int(spread.argmin())]
        raise DataError(
            f"the numbers of {name} are too close to each other to be scaled: their standard deviation is 0",
            "numbers whose squares are not 0",
            f"write {name} in a smaller unit",
            key=key,
        )
    scales = [fit_scale(column) for column in values.T]
    numbers = collect_fields(scales)
    return Head(
        "", columns=target.names, mean=numbers["mean"], std=numbers["std"], low=numbers["low"], high=numbers["high"]
    )


def note_codes(
    target: TargetColumn,
    rows: Ids,
    head: Head,
    name_row: NameRow,
    cure: str = "",
    *,
    is_new: bool = False,
    budget: float = 1.0,
) -> list[str]:
    """Return notes on numbers of some rows that are codes such as 999999999.

    Args:
        target: the targets of all rows.
        rows: the usable rows.
        head: the output with the scale of the numbers.
        name_row: function that names a row of `target`.
        cure: advice on making a number missing; empty if `data.missing` does it.
        is_new: whether these are not the training rows.
        budget: largest share of rows that may have no target.
    """
    lines = []
    for name, scale, column in zip(head.columns, list_scales(head), target.numbers[rows].T, strict=False):
        share = float(scale.find_codes(column).mean())
        needed = share if share > budget else 0.0
        name_index = lambda index: name_row(int(rows[index]))  # noqa: E731
        lines += scale.note_codes(name, column, name_index, cure, is_new=is_new, bad_samples=needed)
    return lines


def keep_scored(target: TargetColumn, rows: Ids, head: Head) -> tuple[Ids, list[str]]:
    """Keep the validation rows without codes, and note the others: a code would outweigh all other rows."""
    is_code = np.zeros(len(rows), np.bool_)
    for scale, column in zip(list_scales(head), target.numbers[rows].T, strict=False) if head.columns else ():
        is_code |= scale.find_clipped(column)
    if not is_code.any() or is_code.all():
        return rows, []
    are = "row whose number to predict is a code counts" if is_code.sum() == 1 else "rows whose numbers are codes count"
    return rows[~is_code], [f"validation: {int(is_code.sum()):,} {are} in no score"]


def list_scales(head: Head) -> list[Scale]:
    """List the scale of each number of a head."""
    return scales_from_json({name: getattr(head, name) for name in FIELDS})


def find_strata(target: TargetColumn, rows: Ids) -> Strata:
    """Find the class of each of some rows."""
    if target.indices is None:
        return Strata(np.zeros(len(rows), np.int64), ())
    used, first_rows, numbers = np.unique(target.indices[rows], return_index=True, return_inverse=True)
    order = np.argsort(first_rows)
    return Strata(np.argsort(order)[numbers], [target.classes[index] for index in used[order].tolist()])


def find_ordered_strata(target: TargetColumn, rows: Ids) -> Strata:
    """Find the class of each of some rows, in the order of the outputs; rows without a label form one more class."""
    assert target.indices is not None
    classes = sort_class_names(target.classes)
    order = [*(classes.index(name) for name in target.classes), len(classes)]
    return Strata(np.array(order, np.int64)[target.indices[rows]], classes)


def encode(target: TargetColumn, rows: Ids, target_head: Head, key: str) -> npt.NDArray[Any]:
    """Encode the targets of some rows for a head.

    Returns:
        Class indices (rows,) int64, NO_LABEL for an empty cell; labels (rows, classes) float32, or scaled numbers (rows,
        columns) float32.

    Raises:
        DataError: if a label is no class of the head; names `key`.
    """
    if target.indices is not None:
        index_of = match_labels(target.classes, target_head.classes)
        is_filled = target.indices[rows] >= 0
        # The last entry, which an empty cell selects, is NO_LABEL.
        class_indices = [*(index_of.get(name, NO_LABEL) for name in target.classes), NO_LABEL]
        indices = np.array(class_indices, np.int64)[target.indices[rows]]
        if (indices[is_filled] == NO_LABEL).any():
            # A text is no class: raises a detailed error.
            index_labels(target.list_names(rows[is_filled]), target_head.classes, key)
        return indices
    values, names = target.numbers[rows], target_head.classes or target_head.columns
    if target.are_listed:
        index_of = {name: index for index, name in enumerate(target.names)}
        counts = values.sum(axis=0).astype(np.int64).tolist()
        listed = [name for name, count in zip(target.names, counts, strict=True) for _ in range(count)]
        index_labels(listed, names, key)
        values = np.append(values, np.zeros((len(rows), 1)), axis=1)[:, [index_of.get(name, -1) for name in names]]
    elif names != target.names:
        raise DataError(
            f"the columns of labels are {list_names(target.names)}",
            f"as in the training data: {list_names(names)}",
            "write the file again",
            key=key,
        )
    if not target_head.several:
        scales = list_scales(target_head)
        values = np.stack([scale.scale(column) for scale, column in zip(scales, values.T, strict=True)], axis=1)
    return values.astype(np.float32)


def _read_class_texts(column: pyarrow.ChunkedArray, name: str, option: str, source: str) -> Any:
    """Read the class of each row as stripped text; refuses numbers with fractions, which are no classes."""
    from pyarrow import types

    texts = column_values.texts(column)
    if types.is_floating(column.type):
        values, _ = column_values.numbers(column)
        fractions = values[np.isfinite(values) & (values != np.floor(values))]
        if len(fractions):
            raise DataError(
                f'column "{name}" of {source} has fractions such as {fractions[0]:g}',
                "classes: text or whole numbers",
                "use a regression for numbers, or write ranges of them as text",
                key=option,
            )
    return texts


def list_classes(target: TargetColumn, rows: Ids, key: str) -> tuple[str, ...]:
    """List the classes of some rows, in the order of the outputs.

    Raises:
        DataError: if there is only one class, or more than one per two rows; names `key`.
    """
    names = sort_class_names(find_strata(target, rows).classes)
    if len(names) < 2:
        raise DataError(
            f"{len(rows):,} rows, and {target.names[0]} is {list_names(names) or 'empty'} in all of them",
            "two classes or more",
            "add rows of another class",
            key=key,
        )
    if len(names) > max(MAX_CLASSES_OF_FEW_ROWS, len(rows) / 2):
        raise DataError(
            f"{target.names[0]} has {len(names):,} different values in {len(rows):,} rows",
            "classes that repeat",
            "use a regression for numbers, or name the column of the class",
            key=key,
        )
    return names


def find_bad_numbers(
    column: pyarrow.ChunkedArray,
    name: str,
    values: column_values.Numbers,
    is_wrong: column_values.Mask,
    possible: str = "a number",
) -> dict[int, str]:
    """Find the reasons why cells that are not empty have no usable number, by row."""
    with np.errstate(invalid="ignore"):
        is_infinite = np.abs(values) > column_values.LARGEST
    reasons = dict.fromkeys(np.flatnonzero(is_infinite).tolist(), f"{name} is infinite")
    return reasons | {
        row: f"{name} is {column_values.format_cell(column, row)}, not {possible}"
        for row in np.flatnonzero(is_wrong).tolist()
    }
