"""Features: columns of a table to tensors, as fitted to the training rows and stored with the model.

A number becomes (value - mean) / std. Where it is missing it is the median, and if training rows lack it too, a second
number is 1 there and 0 elsewhere. A category becomes its place among those of the training rows: 0 stands for one they
do not have, 1 for an empty cell if training rows have some.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from runtime.data.dataset import Inputs
from runtime.data.formats import column_values
from runtime.data.labels import class_names, listed
from runtime.data.stateless_random import Ids
from runtime.data.tables.column_roles import Roles

FARTHEST = 1e6
"""Deviations from the mean at which a new number is cut off; no training value of ten million rows lies so far out."""


@dataclass(frozen=True)
class Number:
    """A numeric column; statistics of the training rows that have it."""

    name: str
    mean: float
    std: float
    median: float
    missing: bool
    """Whether a second number says where it is missing."""

    def scaled(self, values: column_values.Numbers) -> list[npt.NDArray[np.float32]]:
        """One or two rows of shape (N,)."""
        absent = np.isnan(values)
        filled = np.where(absent, self.median, values) if absent.any() else values
        scaled = np.clip((filled - self.mean) / self.std, -FARTHEST, FARTHEST).astype(np.float32)
        return [scaled, absent.astype(np.float32)] if self.missing else [scaled]


@dataclass(frozen=True)
class Category:
    """A categorical column and the categories of the training rows."""

    name: str
    values: tuple[str, ...]
    missing: bool
    """Whether an empty cell has a place of its own."""

    @property
    def size(self) -> int:
        """Places, that of unknown categories too."""
        return 1 + self.missing + len(self.values)

    def places(self, column: Any) -> npt.NDArray[np.int32]:
        """Places of trimmed texts, shape (N,)."""
        found = column_values.positions(column, self.values)
        places = np.where(found >= 0, found + 1 + self.missing, 0).astype(np.int32)
        if self.missing and column.null_count:
            places[column.is_null().to_numpy(zero_copy_only=False)] = 1
        return places


@dataclass(frozen=True)
class Features:
    """All columns that the network sees."""

    numbers: tuple[Number, ...]
    categories: tuple[Category, ...]

    @property
    def width(self) -> int:
        """Numbers of one row, indicators too."""
        return sum(1 + number.missing for number in self.numbers)

    @property
    def sizes(self) -> list[int]:
        """Places of each categorical column."""
        return [category.size for category in self.categories]

    @property
    def names(self) -> list[str]:
        """Names of the columns."""
        return [*(number.name for number in self.numbers), *(category.name for category in self.categories)]

    def tensors(self, table: Any) -> Inputs:
        """A table's rows: numbers (N, width) float32 and categories (N, columns) int32, each only if there are any."""
        rows = (row for number in self.numbers for row in number.scaled(column_values.numbers(table[number.name])[0]))
        places = (category.places(column_values.texts(table[category.name])) for category in self.categories)
        shapes = ((rows, self.width, np.float32), (places, len(self.categories), np.int32))
        return tuple(_by_row(columns, count, len(table), kind) for columns, count, kind in shapes if count)

    def notes(self, table: Any, source: str) -> list[str]:
        """What these rows have that the training rows did not: empty cells and categories."""
        found = []
        for number in self.numbers:
            count = int(np.isnan(column_values.numbers(table[number.name])[0]).sum())
            if count and not number.missing:
                found.append(
                    f"{source}: {number.name} is empty in {count:,} rows and never in training: the median, "
                    f"{number.median:g}"
                )
        for category in self.categories:
            texts = column_values.texts(table[category.name])
            strange = set(column_values.different(texts)) - set(category.values)
            if strange:
                count = int((column_values.positions(texts, category.values) < 0).sum()) - texts.null_count
                found.append(
                    f"{source}: {category.name} has categories that training lacks, {count:,} rows count as "
                    f"unknown: {listed(sorted(strange), 5)}"
                )
            if texts.null_count and not category.missing:
                found.append(
                    f"{source}: {category.name} is empty in {texts.null_count:,} rows and never in training: unknown"
                )
        return found

    def to_json(self) -> dict[str, Any]:
        """Plain data from which `from_json` makes the same features."""
        return {
            "numeric": [asdict(n) for n in self.numbers],
            "categorical": [asdict(c) | {"values": list(c.values)} for c in self.categories],
        }


def from_json(data: Mapping[str, Any]) -> Features:
    """The features that `Features.to_json` described."""
    categories = (Category(c["name"], tuple(c["values"]), c["missing"]) for c in data["categorical"])
    return Features(tuple(Number(**n) for n in data["numeric"]), tuple(categories))


def fit(table: Any, roles: Roles, rows: Ids) -> tuple[Features, list[str]]:
    """The features of a training table.

    Args:
        table: all rows.
        roles: what the columns are.
        rows: the training rows, from which all statistics are taken.

    Returns:
        The features, and a note on each column that is left out because it has one value everywhere.
    """
    numbers, categories, notes = [], [], []
    for name in roles.numeric:
        number = _number(name, column_values.numbers(table[name])[0][rows])
        numbers += [number] if number else []
        notes += [] if number else [f"{name} has one value in all training rows, so it is left out"]
    for name in roles.categorical:
        category = _category(name, column_values.texts(table[name]).take(rows))
        categories += [category] if category else []
        notes += [] if category else [f"{name} has one value in all training rows, so it is left out"]
    return Features(tuple(numbers), tuple(categories)), notes


def _number(name: str, values: column_values.Numbers) -> Number | None:
    absent = np.isnan(values)
    missing = bool(absent.any())
    known = values[~absent] if missing else values
    if not len(known) or (not missing and known.min() == known.max()):
        return None
    # A value such as 0.1 has, summed a million times, a mean that is not quite 0.1, and so a tiny deviation.
    spread = float(known.std()) if known.min() < known.max() else 0.0
    return Number(name, float(known.mean()), spread or 1.0, float(np.median(known)), missing)


def _category(name: str, column: Any) -> Category | None:
    values, missing = class_names(column_values.different(column)), bool(column.null_count)
    return Category(name, values, missing) if len(values) + missing > 1 and values else None


def _by_row(columns: Iterator[npt.NDArray[Any]], count: int, length: int, kind: type) -> Tensor:
    """Shape (length, count), in which a row lies together: that is what a batch is gathered from."""
    made: npt.NDArray[Any] = np.empty((count, length), kind)
    for index, column in enumerate(columns):
        made[index] = column
    return torch.from_numpy(made).t().contiguous()
