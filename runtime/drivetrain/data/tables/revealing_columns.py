"""Names columns that number the rows, or that tell the target by themselves: mostly leaks, now and then a discovery."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from drivetrain.data.formats import column_values
from drivetrain.data.stateless_random import Ids
from drivetrain.data.tables.column_roles import Roles
from drivetrain.data.target_columns import TargetColumn

if TYPE_CHECKING:
    import pyarrow

Groups = npt.NDArray[np.int64]
MIN_ROWS = 20
"""Rows from which on anything is said: fewer prove nothing."""
LOOKED_AT = 20_000
"""Rows by which columns are compared with the target."""
NEIGHBOR_ROWS = 8
"""Rows with similar numbers that are taken as equal, if most numbers differ."""
LARGEST_COUNT = 20_000_000
"""Cells of the largest table of counts, by group and class."""
NEARLY_ALL = 0.98
"""A column that explains this share of the target alone is named."""
MAX_LISTED_COLUMNS = 5
"""Largest number of columns that are named for one reason."""


@dataclass(frozen=True)
class _Explanation:
    share: float
    """Of the target: 0 for a column that says nothing, 1 for one that says all."""
    words: str


def describe(
    table: pyarrow.Table,
    roles: Roles,
    target: TargetColumn,
    rows: Ids,
    dates: list[str],
    remedy: str = "data.ignore: [{}]",
) -> list[str]:
    """A line for each column that numbers the rows, and for each that tells the target by itself.

    Args:
        table: all rows.
        roles: the columns that the network gets.
        target: the targets of all rows.
        rows: the training rows.
        dates: columns that are made of dates, which follow each other without being numbers of rows.
        remedy: what leaves a column out, for messages.
    """
    if len(rows) < MIN_ROWS:
        return []
    looked_at = rows[:: -(-len(rows) // LOOKED_AT)]
    sample = _read_targets(target, looked_at)
    numbering, telling = [], []
    for name in roles.names:
        explanation = sample.explain(_group_rows(table, name, looked_at, name in roles.categorical))
        if name not in dates and (ends := _find_row_numbers(table[name])):
            numbering.append(
                f'"{name}" is a number of the row, from {ends[0]:.0f} to {ends[1]:.0f}, and {explanation.words}; '
                f"{remedy.format(name)} leaves it out"
            )
        elif explanation.share >= NEARLY_ALL:
            telling.append(
                f'"{name}" tells {sample.name} by itself: {explanation.words}; if it is known only when {sample.name} is, '
                f"{'data.dates without it' if name in dates else remedy.format(name)} leaves it out"
            )
    return [*_shorten(numbering, "number the rows"), *_shorten(telling, f"tell {sample.name} by themselves")]


def _shorten(lines: list[str], reason: str) -> list[str]:
    over = len(lines) - MAX_LISTED_COLUMNS
    return [*lines[:MAX_LISTED_COLUMNS], f"and {over:,} more columns {reason}"] if over > 0 else lines


def _find_row_numbers(column: pyarrow.ChunkedArray) -> tuple[float, float] | None:
    """The smallest and the largest number of a column of different whole numbers with few gaps: an index, in any order,
    perhaps of the rows that are left of a larger table. None for other columns.
    """
    if column_values.kind(column) not in ("number", "text"):
        return None
    values, _ = column_values.numbers(column)
    low, high = float(values.min()), float(values.max())
    if not (np.isfinite(low) and np.isfinite(high)) or not len(values) - 1 <= high - low < 2 * len(values):
        return None
    is_integer = bool((values == np.floor(values)).all())
    return (low, high) if is_integer and len(np.unique(values)) == len(values) else None


def _group_rows(table: pyarrow.Table, name: str, rows: Ids, category: bool) -> Groups:
    """The rows with the same category, the same number or, if most numbers differ, similar ones; from 0."""
    column = table[name].take(rows)
    if category:
        encoded = column_values.texts(column).combine_chunks().dictionary_encode(null_encoding="encode")
        return np.asarray(encoded.indices.to_numpy(zero_copy_only=False), np.int64)
    values, _ = column_values.numbers(column)
    distinct, inverse = np.unique(values, return_inverse=True)
    if len(distinct) * NEIGHBOR_ROWS <= len(values):
        return np.asarray(inverse, np.int64)
    ranks = np.empty(len(values), np.int64)
    ranks[np.argsort(values, kind="stable")] = np.arange(len(values))
    return ranks // NEIGHBOR_ROWS


@dataclass(frozen=True)
class _Sample:
    """The targets of the rows that are looked at."""

    name: str
    classes: Groups | None
    """The class of each row, from 0; None for numbers."""
    numbers: column_values.Numbers

    def explain(self, groups: Groups) -> _Explanation:
        """What the other rows of its group say of a row's target."""
        if self.classes is None:
            share = max(0.0, float(np.mean([_measure_variance(groups, column) for column in self.numbers.T])))
            return _Explanation(share, f"alone it explains {share:.1%} of the variance of {self.name}")
        accuracy = _measure_accuracy(groups, self.classes)
        most = float(np.bincount(self.classes).max() / len(self.classes))
        share = max(0.0, (accuracy - most) / (1 - most)) if most < 1 else 0.0
        return _Explanation(
            share, f"alone it gives {accuracy:.0%} of the rows their {self.name} (the most frequent class: {most:.0%})"
        )


def _read_targets(target: TargetColumn, rows: Ids) -> _Sample:
    name = ", ".join(target.names)
    if target.texts is None:
        return _Sample(name, None, target.numbers[rows])
    encoded: Any = target.texts.take(rows).combine_chunks().dictionary_encode()
    classes = np.asarray(encoded.indices.to_numpy(zero_copy_only=False), np.int64)
    return _Sample(name, classes, target.numbers[rows])


def _measure_accuracy(groups: Groups, classes: Groups) -> float:
    """The share of rows whose class is the most frequent one among the other rows of their group."""
    width, height = int(classes.max()) + 1, int(groups.max()) + 1
    if width * height > LARGEST_COUNT:
        return 0.0
    counts = np.bincount(groups * width + classes, minlength=width * height).reshape(height, width)
    if width < 2:
        return 1.0
    second, first = np.partition(counts, width - 2, axis=1)[:, -2:].T
    own_count = counts[groups, classes]
    rival = np.where(own_count == first[groups], second[groups], first[groups])
    return float((own_count - 1 > rival).mean() + 0.5 * (own_count - 1 == rival).mean())


def _measure_variance(groups: Groups, values: column_values.Numbers) -> float:
    """The share of the variance that the means of the other rows of each group explain."""
    counts, sums = np.bincount(groups), np.bincount(groups, values)
    other_rows = counts[groups] - 1
    guesses = np.where(other_rows > 0, (sums[groups] - values) / np.maximum(other_rows, 1), values.mean())
    spread = float(((values - values.mean()) ** 2).sum())
    return 1 - float(((values - guesses) ** 2).sum()) / spread if spread else 0.0
