"""Notes columns that number the rows, or that predict the target alone: mostly leaks of the target."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from drivetrain.data import target_columns
from drivetrain.data.formats import column_values, times
from drivetrain.data.stateless_random import Ids
from drivetrain.data.tables.column_roles import Roles
from drivetrain.data.target_columns import TargetColumn

if TYPE_CHECKING:
    import pyarrow

Groups = npt.NDArray[np.int64]
"""Group or class of each row, from 0; shape (N,)."""
MIN_ROWS = 20
"""Smallest number of training rows to examine: fewer prove nothing."""
MAX_COMPARED_ROWS = 20_000
"""Largest number of rows used to compare columns with the target."""
NEIGHBOR_ROWS = 8
"""Number of rows with neighboring values that form a group, if most numbers of a column are distinct."""
MAX_COUNT_CELLS = 20_000_000
"""Largest number of cells in a table of counts by group and class; columns that need more are skipped."""
MIN_EXPLAINED_SHARE = 0.98
"""Smallest share of the target for which a column that explains it alone gets a note."""
MAX_LISTED_COLUMNS = 5
"""Largest number of columns named for one reason."""


def note_revealing(
    table: pyarrow.Table,
    roles: Roles,
    target: TargetColumn,
    rows: Ids,
    dates: list[str],
    remedy: str = "data.ignore: [{}]",
) -> list[str]:
    """Return a note on each column that numbers the training rows, and on each that alone predicts their target.

    `dates` are columns made from dates, which may follow each other without numbering the rows. `remedy` is the setting
    that ignores a column, for messages; {} stands for its name.
    """
    if len(rows) < MIN_ROWS:
        return []
    sampled_rows = rows[:: -(-len(rows) // MAX_COMPARED_ROWS)]
    classes = None if target.indices is None else target_columns.find_strata(target, sampled_rows).numbers
    sample = _Sample(", ".join(target.names), classes, target.numbers[sampled_rows])
    row_number_lines, target_lines = [], []
    for name in roles.names:
        share, description = sample.explain(_group_rows(table, name, sampled_rows, name in roles.categorical))
        if name not in dates and (smallest_and_largest := _find_row_numbers(table[name], name)):
            row_number_lines.append(
                f'"{name}" is a number of the row, from {smallest_and_largest[0]:.0f} to {smallest_and_largest[1]:.0f}, and {description}; '
                f"{remedy.format(name)} leaves it out"
            )
        elif share >= MIN_EXPLAINED_SHARE:
            target_lines.append(
                f'"{name}" tells {sample.name} by itself: {description}; if it is known only when {sample.name} is, '
                f"{'data.dates without it' if name in dates else remedy.format(name)} leaves it out"
            )
    return [
        *_limit_lines(row_number_lines, "number the rows"),
        *_limit_lines(target_lines, f"tell {sample.name} by themselves"),
    ]


def _limit_lines(lines: list[str], reason: str) -> list[str]:
    """Return the first lines, then a line with the number of the remaining ones."""
    hidden_count = len(lines) - MAX_LISTED_COLUMNS
    return [*lines[:MAX_LISTED_COLUMNS], f"and {hidden_count:,} more columns {reason}"] if hidden_count > 0 else lines


def _find_row_numbers(column: pyarrow.ChunkedArray, name: str) -> tuple[float, float] | None:
    """Find the smallest and the largest number of a column that numbers the rows; None for other columns.

    Such a column has distinct whole numbers with few gaps, perhaps in equal steps (10, 20, 30), in any order: the table
    may be a part of a larger one.
    """
    if column_values.kind(column) not in ("number", "text"):
        return None
    values, _ = column_values.numbers(column)
    low, high = float(values.min()), float(values.max())
    if not (np.isfinite(low) and np.isfinite(high)) or high - low >= 2**53 or not (values == np.floor(values)).all():
        return None
    step = int(np.gcd.reduce((values - low).astype(np.int64))) or 1
    if not len(values) - 1 <= (high - low) / step < 2 * len(values) or len(np.unique(values)) < len(values):
        return None
    # Counts of seconds at equal distances are times.
    return None if step > 1 and times.recognize(column, name) else (low, high)


def _group_rows(table: pyarrow.Table, name: str, rows: Ids, is_category: bool) -> Groups:
    """Group the rows by equal category, by equal number or, if most numbers are distinct, by similar numbers."""
    column = table[name].take(rows)
    if is_category:
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
    """Targets of the rows that are used to compare columns."""

    name: str
    classes: Groups | None
    """Class of each row, from 0; None for numbers."""
    numbers: column_values.Numbers

    def explain(self, groups: Groups) -> tuple[float, str]:
        """Return how well the other rows of a group predict a row's target, from 0 (not at all) to 1; in words too."""
        if self.classes is None:
            share = max(0.0, float(np.mean([_measure_variance(groups, column) for column in self.numbers.T])))
            return share, f"alone it explains {share:.1%} of the variance of {self.name}"
        accuracy = _measure_accuracy(groups, self.classes)
        majority_share = float(np.bincount(self.classes).max() / len(self.classes))
        share = max(0.0, (accuracy - majority_share) / (1 - majority_share)) if majority_share < 1 else 0.0
        majority = f"the most frequent class: {majority_share:.0%}"
        return share, f"alone it gives {accuracy:.0%} of the rows their {self.name} ({majority})"


def _measure_accuracy(groups: Groups, classes: Groups) -> float:
    """Measure the share of rows whose class is the most frequent of the other rows in their group; ties count half."""
    class_count, group_count = int(classes.max()) + 1, int(groups.max()) + 1
    if class_count * group_count > MAX_COUNT_CELLS:
        return 0.0
    counts = np.bincount(groups * class_count + classes, minlength=class_count * group_count).reshape(
        group_count, class_count
    )
    if class_count < 2:
        return 1.0
    second_counts, first_counts = np.partition(counts, class_count - 2, axis=1)[:, -2:].T
    count_of_class = counts[groups, classes]
    largest_other_count = np.where(count_of_class == first_counts[groups], second_counts[groups], first_counts[groups])
    return float(
        (count_of_class - 1 > largest_other_count).mean() + 0.5 * (count_of_class - 1 == largest_other_count).mean()
    )


def _measure_variance(groups: Groups, values: column_values.Numbers) -> float:
    """Measure the share of the variance that the means of the other rows of each group explain."""
    counts, sums = np.bincount(groups), np.bincount(groups, values)
    other_row_counts = counts[groups] - 1
    predictions = np.where(
        other_row_counts > 0, (sums[groups] - values) / np.maximum(other_row_counts, 1), values.mean()
    )
    total_squares = float(((values - values.mean()) ** 2).sum())
    return 1 - float(((values - predictions) ** 2).sum()) / total_squares if total_squares else 0.0
