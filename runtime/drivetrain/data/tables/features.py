"""Converts table columns to tensors, with statistics of the training rows that are stored with the model.

A number becomes (value - mean) / std. If it is missing, the median replaces it; if training rows also lack it, a
second number is 1 there and 0 elsewhere. A category becomes its index among the categories of the training rows: 0
stands for an unknown category, 1 for an empty cell if training rows have empty cells.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from drivetrain.data.dataset import Inputs
from drivetrain.data.formats import column_values
from drivetrain.data.labels import note_similar_names, sort_class_names
from drivetrain.data.notes import list_names
from drivetrain.data.scales import NameRow, Scale, fit_scale
from drivetrain.data.stateless_random import Ids
from drivetrain.data.tables import date_features
from drivetrain.data.tables.column_roles import Roles
from drivetrain.data.tables.date_features import DateFeatures

if TYPE_CHECKING:
    import pyarrow
    from torch import Tensor

MAX_EXACT_INTEGER = 2**53
"""Bound below which float64 holds every integer exactly."""


@dataclass(frozen=True)
class Number:
    """A numeric column, with statistics of the training rows that have a value."""

    name: str
    scale: Scale
    median: float
    missing: bool
    """Whether a second number (0 or 1) marks missing values."""
    edges: tuple[float, ...] = ()
    """Bounds of bins of equally many training rows, scaled and ascending; empty if the number is not embedded."""

    def convert(self, values: column_values.Numbers) -> list[npt.NDArray[np.float32]]:
        """Scale numbers (N,), and mark missing ones if training rows have some: one or two arrays of shape (N,)."""
        is_missing = np.isnan(values)
        filled = np.where(is_missing, self.median, values) if is_missing.any() else values
        scaled = self.scale.scale(filled)
        return [scaled, is_missing.astype(np.float32)] if self.missing else [scaled]

    def to_json(self) -> dict[str, object]:
        """Return plain JSON values, including the values of the scale."""
        values = asdict(self)
        scale: dict[str, object] = values.pop("scale")
        return scale | values


@dataclass(frozen=True)
class Category:
    """A categorical column, with the categories of the training rows."""

    name: str
    values: tuple[str, ...]
    missing: bool
    """Whether empty cells have a separate index."""

    @property
    def size(self) -> int:
        """Number of indices, including the index of unknown categories."""
        return 1 + self.missing + len(self.values)

    def index_cells(self, column: pyarrow.ChunkedArray) -> npt.NDArray[np.int32]:
        """Return the index of the category of each stripped text, shape (N,)."""
        positions = column_values.positions(column, self.values)
        indices = np.where(positions >= 0, positions + 1 + self.missing, 0).astype(np.int32)
        if self.missing and column.null_count:
            indices[column.is_null().to_numpy(zero_copy_only=False)] = 1
        return indices


@dataclass(frozen=True)
class Features:
    """All columns that the network uses, each with the statistics that convert its cells."""

    numbers: tuple[Number, ...]
    categories: tuple[Category, ...]
    dates: DateFeatures = field(default_factory=DateFeatures)
    """Rule that turns dates into columns of numbers; it is applied first."""

    @property
    def file_columns(self) -> list[str]:
        """Names of the file columns that the features are made from."""
        return self.dates.list_source_columns(self.names)

    @property
    def width(self) -> int:
        """Numbers per row, missing-value indicators included."""
        return sum(1 + number.missing for number in self.numbers)

    @property
    def edges(self) -> list[list[float]]:
        """Bounds of the bins of each number of a row; a missing-value indicator has none."""
        per_input = []
        for number in self.numbers:
            per_input.append(list(number.edges))
            if number.missing:
                per_input.append([])
        return per_input

    @property
    def sizes(self) -> list[int]:
        """Number of indices of each categorical column."""
        return [category.size for category in self.categories]

    @property
    def names(self) -> list[str]:
        """Names of the columns."""
        return [*(number.name for number in self.numbers), *(category.name for category in self.categories)]

    def roles(self) -> Roles:
        """Return the role of each column in this run; a job that starts from it keeps them, whatever its file holds."""
        return Roles([number.name for number in self.numbers], [category.name for category in self.categories])

    def to_tensors(self, table: pyarrow.Table) -> Inputs:
        """Convert a table to numbers (N, width) float32 and categories (N, columns) int32, each only if any exist."""
        number_columns = (
            row for number in self.numbers for row in number.convert(column_values.numbers(table[number.name])[0])
        )
        category_columns = (
            category.index_cells(column_values.texts(table[category.name])) for category in self.categories
        )
        shapes = ((number_columns, self.width, np.float32), (category_columns, len(self.categories), np.int32))
        return tuple(_stack_by_row(columns, count, len(table), dtype) for columns, count, dtype in shapes if count)

    def note_codes(self, table: pyarrow.Table, rows: Ids, name_row: NameRow, *, is_new: bool = False) -> list[str]:
        """Return notes on numbers of some rows that are codes such as -9999; `name_row` names a row of the table."""
        lines = []
        for number in self.numbers:
            is_date = number.name in self.dates.names
            cure = "data.missing, with the date as it is written there" if is_date and not is_new else ""
            values = column_values.numbers(table[number.name])[0][rows]
            name_index = lambda index: name_row(int(rows[index]))  # noqa: E731
            lines += number.scale.note_codes(number.name, values, name_index, cure, is_new=is_new)
        return lines

    def notes(self, table: pyarrow.Table, source: str, name_row: NameRow) -> list[str]:
        """Return notes on cells unlike the training rows: empty cells, unknown categories and distant numbers."""
        lines = []
        for number in self.numbers:
            values = column_values.numbers(table[number.name])[0]
            lines += [f"{source}: {note}" for note in number.scale.note_distant(number.name, values, name_row)]
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
        """Return the features as plain JSON values for `from_json`."""
        return {
            "numeric": [number.to_json() for number in self.numbers],
            "categorical": [asdict(c) | {"values": list(c.values)} for c in self.categories],
            **self.dates.to_json(),
        }


def from_json(data: Mapping[str, Any]) -> Features:
    """Rebuild the features from `Features.to_json`."""
    categories = (Category(c["name"], tuple(c["values"]), c["missing"]) for c in data["categorical"])
    numbers = map(_number_from_json, data["numeric"])
    return Features(tuple(numbers), tuple(categories), date_features.from_json(data))


def _number_from_json(stored: Mapping[str, Any]) -> Number:
    scale = Scale(**{field.name: stored[field.name] for field in fields(Scale) if field.name in stored})
    return Number(stored["name"], scale, stored["median"], stored["missing"], tuple(stored["edges"]))


def fit_features(
    table: pyarrow.Table, roles: Roles, rows: Ids, dates: DateFeatures, bins: int = 0
) -> tuple[Features, list[str]]:
    """Choose the features of a table and compute their statistics from the training rows.

    Each numeric column gets `bins` bins of equally many training rows; 0 for none. Returns the features, and notes on
    columns dropped because their value is constant, and on categories that are spelled almost the same.
    """
    numbers, categories, notes = [], [], []
    empty_shares: dict[str, float] = {}
    for name in roles.numeric:
        values = column_values.numbers(table[name])[0][rows]
        empty_shares[name] = float(np.isnan(values).mean())
        notes += _note_rounded(name, table[name], values)
        number = _fit_number(name, values, bins)
        numbers += [number] if number else []
        notes += [] if number else [f"{name} is constant in the training rows, so it is not used"]
    for name in roles.categorical:
        texts = column_values.texts(table[name]).take(rows)
        empty_shares[name] = texts.null_count / max(1, len(texts))
        names, has_missing = sort_class_names(column_values.different(texts)), bool(texts.null_count)
        category = Category(name, names, has_missing) if names and len(names) + has_missing > 1 else None
        categories += [category] if category else []
        notes += (
            note_similar_names(name, category.values)
            if category
            else [f"{name} is constant in the training rows, so it is not used"]
        )
    empty = [f"{name} {share:.1%}" for name, share in empty_shares.items() if share]
    if empty:
        notes.append(
            f"empty cells: {list_names(empty)}; numbers get the median and a mark, categories one of their own"
        )
    return Features(tuple(numbers), tuple(categories), dates), notes


def _note_rounded(name: str, column: pyarrow.ChunkedArray, values: column_values.Numbers) -> list[str]:
    """Return a note on whole numbers, such as identifiers, that float64 cannot distinguish."""
    import pyarrow

    if (
        not pyarrow.types.is_integer(column.type)
        or np.max(np.nan_to_num(np.abs(values)), initial=0) < MAX_EXACT_INTEGER
    ):
        return []
    return [
        f"{name} has whole numbers of {MAX_EXACT_INTEGER:,} and more, which are rounded; if they are names: data.categorical, or "
        "data.ignore"
    ]


def _fit_number(name: str, values: column_values.Numbers, bins: int) -> Number | None:
    """Compute the statistics of a numeric column; None if it is constant or empty."""
    is_missing = np.isnan(values)
    has_missing = bool(is_missing.any())
    present = values[~is_missing] if has_missing else values
    if not len(present) or (not has_missing and present.min() == present.max()):
        return None
    scale = fit_scale(present)
    edges = _fit_bin_edges(scale.scale(present[~scale.find_codes(present)]), bins) if bins else ()
    return Number(name, scale, float(np.median(present)), has_missing, edges)


def _fit_bin_edges(scaled: npt.NDArray[np.float32], bins: int) -> tuple[float, ...]:
    """Return the bounds of bins of equally many values; fewer if values repeat often, none if one bin is left."""
    edges = np.unique(np.quantile(scaled, np.linspace(0, 1, bins + 1), method="nearest"))
    return tuple(edges.tolist()) if len(edges) > 2 else ()


def _stack_by_row(columns: Iterator[npt.NDArray[np.generic]], column_count: int, row_count: int, dtype: type) -> Tensor:
    """Join columns (row_count,) into a tensor (row_count, column_count), contiguous by row, as batches read it."""
    matrix: npt.NDArray[Any] = np.empty((column_count, row_count), dtype)
    for index, column in enumerate(columns):
        matrix[index] = column
    import torch

    return torch.from_numpy(matrix).t().contiguous()
