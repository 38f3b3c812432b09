"""Converts table columns to tensors, with statistics of the training rows that are stored with the model.

A number becomes (value - mean) / std. If it is missing, the median takes its place; if training rows lack it too, a
second number is 1 there and 0 elsewhere. A category becomes its index among those of the training rows: 0 stands for an
unknown category, 1 for an empty cell if training rows have empty cells.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from drivetrain.data.dataset import Inputs
from drivetrain.data.formats import column_values
from drivetrain.data.labels import list_names, note_similar_names, sort_class_names
from drivetrain.data.stateless_random import Ids
from drivetrain.data.tables import date_features
from drivetrain.data.tables.column_roles import Roles
from drivetrain.data.tables.date_features import DateFeatures

if TYPE_CHECKING:
    import pyarrow

MAX_COMPARED_ROWS = 100_000
"""Rows whose numbers are compared before and after scaling."""
MAX_MERGED_SHARE = 0.5
"""Share of the different numbers that must remain different once they are scaled."""
MAX_DEVIATIONS = 1e6
"""New numbers are clipped at this many standard deviations; no training value of ten million rows can exceed it."""


@dataclass(frozen=True)
class Number:
    """A numeric column, with statistics of the training rows that have a value."""

    name: str
    mean: float
    std: float
    median: float
    missing: bool
    """Whether a second number (0 or 1) marks missing values."""
    edges: tuple[float, ...] = ()
    """Bounds of bins of equally many training rows, scaled and ascending; empty if the number is not embedded."""

    def describe_distant(self, values: column_values.Numbers) -> list[str]:
        """A note on values that are farther from those of the training rows than these are from each other."""
        if not self.edges:
            return []
        low, high = (edge * self.std + self.mean for edge in (self.edges[0], self.edges[-1]))
        distances = np.maximum(low - values, values - high)
        distant = np.flatnonzero(distances > high - low)
        if not len(distant):
            return []
        farthest = values[distant[np.argmax(distances[distant])]]
        return [
            f"{self.name} is far from the {low:.4g} to {high:.4g} of the training rows in {len(distant):,} rows, such as "
            f"{farthest:g}: what is predicted there is a guess"
        ]

    def scaled(self, values: column_values.Numbers) -> list[npt.NDArray[np.float32]]:
        """One or two arrays of shape (N,)."""
        absent = np.isnan(values)
        filled = np.where(absent, self.median, values) if absent.any() else values
        scaled = np.clip((filled - self.mean) / self.std, -MAX_DEVIATIONS, MAX_DEVIATIONS).astype(np.float32)
        return [scaled, absent.astype(np.float32)] if self.missing else [scaled]


@dataclass(frozen=True)
class Category:
    """A categorical column, with the categories of the training rows."""

    name: str
    values: tuple[str, ...]
    missing: bool
    """Whether empty cells have an index of their own."""

    @property
    def size(self) -> int:
        """Number of indices, including that of unknown categories."""
        return 1 + self.missing + len(self.values)

    def places(self, column: pyarrow.ChunkedArray) -> npt.NDArray[np.int32]:
        """Indices of stripped texts, shape (N,)."""
        positions = column_values.positions(column, self.values)
        places = np.where(positions >= 0, positions + 1 + self.missing, 0).astype(np.int32)
        if self.missing and column.null_count:
            places[column.is_null().to_numpy(zero_copy_only=False)] = 1
        return places


@dataclass(frozen=True)
class Features:
    """All columns that the network uses."""

    numbers: tuple[Number, ...]
    categories: tuple[Category, ...]
    dates: DateFeatures = field(default_factory=DateFeatures)
    """How numbers are made of dates before anything else."""

    @property
    def file_columns(self) -> list[str]:
        """Names of the columns of a file that they are made from."""
        return self.dates.columns(self.names)

    @property
    def width(self) -> int:
        """Numbers per row, missing-value indicators included."""
        return sum(1 + number.missing for number in self.numbers)

    @property
    def edges(self) -> list[list[float]]:
        """Bounds of the bins of each number of a row; a missing-value indicator has none."""
        return [list(edges) for number in self.numbers for edges in (number.edges, ())[: 1 + number.missing]]

    @property
    def sizes(self) -> list[int]:
        """Number of indices of each categorical column."""
        return [category.size for category in self.categories]

    @property
    def names(self) -> list[str]:
        """Names of the columns."""
        return [*(number.name for number in self.numbers), *(category.name for category in self.categories)]

    def roles(self) -> Roles:
        """The kind of each column, which the file of a job that starts from this run may seem to contradict."""
        return Roles([number.name for number in self.numbers], [category.name for category in self.categories])

    def tensors(self, table: pyarrow.Table) -> Inputs:
        """A table's rows: numbers (N, width) float32 and categories (N, columns) int32, each only if there are any."""
        rows = (row for number in self.numbers for row in number.scaled(column_values.numbers(table[number.name])[0]))
        places = (category.places(column_values.texts(table[category.name])) for category in self.categories)
        shapes = ((rows, self.width, np.float32), (places, len(self.categories), np.int32))
        return tuple(_by_row(columns, count, len(table), kind) for columns, count, kind in shapes if count)

    def notes(self, table: pyarrow.Table, source: str) -> list[str]:
        """Notes on empty cells, on categories that the training rows did not have, and on numbers far from theirs."""
        lines = []
        for number in self.numbers:
            values = column_values.numbers(table[number.name])[0]
            lines += [f"{source}: {note}" for note in number.describe_distant(values)]
            count = int(np.isnan(values).sum())
            if count and not number.missing:
                lines.append(
                    f"{source}: {number.name} is empty in {count:,} rows and never in training: filled with the median, "
                    f"{number.median:g}"
                )
        for category in self.categories:
            texts = column_values.texts(table[category.name])
            unknown = texts.filter(column_values.positions(texts, category.values) < 0).drop_null()
            if len(unknown):
                lines.append(
                    f"{source}: {category.name} has categories that are not in the training data, {len(unknown):,} rows "
                    f"count as unknown: {list_names(sorted(column_values.different(unknown)), 5)}"
                )
            if texts.null_count and not category.missing:
                lines.append(
                    f"{source}: {category.name} is empty in {texts.null_count:,} rows and never in training: unknown"
                )
        return lines

    def to_json(self) -> dict[str, object]:
        """Plain JSON values from which `from_json` rebuilds the features."""
        return {
            "numeric": [asdict(n) for n in self.numbers],
            "categorical": [asdict(c) | {"values": list(c.values)} for c in self.categories],
            **self.dates.to_json(),
        }


def from_json(data: Mapping[str, Any]) -> Features:
    """Rebuild the features from `Features.to_json`."""
    categories = (Category(c["name"], tuple(c["values"]), c["missing"]) for c in data["categorical"])
    numbers = (Number(**n | {"edges": tuple(n.get("edges", ()))}) for n in data["numeric"])
    return Features(tuple(numbers), tuple(categories), date_features.from_json(data))


def fit(
    table: pyarrow.Table, roles: Roles, rows: Ids, dates: DateFeatures, bins: int = 0
) -> tuple[Features, list[str]]:
    """Compute the features of a training table.

    Args:
        table: all rows.
        roles: the kind of each column.
        rows: the training rows, from which all statistics are computed.
        dates: how numbers were made of dates.
        bins: of each number, with equally many training rows; 0 for none.

    Returns:
        The features, and notes: on each column that is dropped because its value is constant, and on categories that
        are spelled almost the same.
    """
    numbers, categories, notes = [], [], []
    for name in roles.numeric:
        values = column_values.numbers(table[name])[0][rows]
        number = _number(name, values, bins)
        numbers += [number] if number else []
        notes += (
            _describe_merged(number, values)
            if number
            else [f"{name} is constant in the training rows, so it is not used"]
        )
    for name in roles.categorical:
        category = _category(name, column_values.texts(table[name]).take(rows))
        categories += [category] if category else []
        notes += (
            note_similar_names(name, category.values)
            if category
            else [f"{name} is constant in the training rows, so it is not used"]
        )
    return Features(tuple(numbers), tuple(categories), dates), notes


def _number(name: str, values: column_values.Numbers, bins: int) -> Number | None:
    absent = np.isnan(values)
    missing = bool(absent.any())
    present = values[~absent] if missing else values
    if not len(present) or (not missing and present.min() == present.max()):
        return None
    # The mean of a million times 0.1 is not exactly 0.1, which would give a tiny standard deviation.
    spread = float(present.std()) if present.min() < present.max() else 0.0
    number = Number(name, float(present.mean()), spread or 1.0, float(np.median(present)), missing)
    return replace(number, edges=_edges(number.scaled(present)[0], bins)) if bins else number


def _describe_merged(number: Number, values: column_values.Numbers) -> list[str]:
    """A note if numbers that differ are the same after scaling, beside a few that are far larger, such as -999999999."""
    present = values[~np.isnan(values)][:MAX_COMPARED_ROWS]
    different, remaining = len(np.unique(present)), len(np.unique(number.scaled(present)[0]))
    if remaining > MAX_MERGED_SHARE * different:
        return []
    return [
        f"{number.name} has {different:,} different numbers, of which {remaining:,} remain beside those from {present.min():g} to "
        f"{present.max():g}: leave such values empty (data.missing), or the column has nothing to say"
    ]


def _edges(scaled: npt.NDArray[np.float32], bins: int) -> tuple[float, ...]:
    """Return the bounds of bins of equally many values; fewer where values come often, none if one bin is left."""
    edges = np.unique(np.quantile(scaled, np.linspace(0, 1, bins + 1), method="nearest"))
    return tuple(edges.tolist()) if len(edges) > 2 else ()


def _category(name: str, column: pyarrow.ChunkedArray) -> Category | None:
    values, missing = sort_class_names(column_values.different(column)), bool(column.null_count)
    return Category(name, values, missing) if len(values) + missing > 1 and values else None


def _by_row(columns: Iterator[npt.NDArray[np.generic]], count: int, length: int, kind: type) -> Tensor:
    """Shape (length, count), row-contiguous, since batches are gathered by row."""
    matrix: npt.NDArray[Any] = np.empty((count, length), kind)
    for index, column in enumerate(columns):
        matrix[index] = column
    return torch.from_numpy(matrix).t().contiguous()
