"""Counts of right and wrong predictions for a head: a confusion matrix of exclusive classes, or a table of independent labels."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import sqrt
from typing import Any, TypeVar

from drivetrain.report.formatting import shorten
from drivetrain.system.printable import printable

HeadTable = TypeVar("HeadTable")
HEADER = ("label", "samples", "predicted", "precision", "recall", "F1", "average precision")
NORMAL_95 = 1.96
"""Standard errors to each side that hold 95 % of a normal distribution."""


@dataclass(frozen=True)
class WeakClass:
    """The predictions of a class: precision, recall, F1, and the class that its samples are most often mistaken for."""

    name: str
    samples: int
    precision: float
    recall: float
    f1: float
    mistaken_for: str


@dataclass(frozen=True)
class Confusion:
    """Counts by true class (rows) and prediction (columns), for one head; the name is empty if it is the only head."""

    head: str
    classes: tuple[str, ...]
    matrix: tuple[tuple[int, ...], ...]

    @property
    def total(self) -> int:
        """Count the samples."""
        return sum(map(sum, self.matrix))

    @property
    def hits(self) -> int:
        """Count the correct predictions."""
        return sum(row[i] for i, row in enumerate(self.matrix))

    @property
    def interval(self) -> tuple[float, float]:
        """Compute the 95 % interval of the accuracy."""
        return compute_interval(self.hits, self.total)

    def list_mistakes(self, limit: int = 10) -> list[tuple[str, str, int, float]]:
        """List the most frequent mistakes: true class, prediction, count, share of the true class's samples."""
        cells = [(count, i, j) for i, row in enumerate(self.matrix) for j, count in enumerate(row) if i != j and count]
        cells.sort(key=lambda cell: (-cell[0], cell[1], cell[2]))
        return [(self.classes[i], self.classes[j], count, count / sum(self.matrix[i])) for count, i, j in cells[:limit]]

    def list_weakest(self, limit: int = 10) -> list[WeakClass]:
        """List the classes with the lowest F1, except classes without samples or mistakes."""
        predicted = [sum(column) for column in zip(*self.matrix, strict=True)]
        rows = []
        for i, row in enumerate(self.matrix):
            samples, hits = sum(row), row[i]
            if samples and (hits < samples or hits < predicted[i]):
                precision = hits / predicted[i] if predicted[i] else 0.0
                wrong = max((j for j in range(len(row)) if j != i), key=row.__getitem__)
                mistaken_for = f"{self.classes[wrong]} ({row[wrong]:,})" if row[wrong] else ""
                f1 = 2 * hits / (samples + predicted[i])
                rows.append(WeakClass(self.classes[i], samples, precision, hits / samples, f1, mistaken_for))
        return sorted(rows, key=lambda row: row.f1)[:limit]


def compute_interval(hits: int, total: int) -> tuple[float, float]:
    """Compute where the true share lies with 95 % probability (Wilson 1927); 0 to 1 without samples."""
    if not total:
        return 0.0, 1.0
    squared, share = NORMAL_95**2, hits / total
    middle = (share + squared / (2 * total)) / (1 + squared / total)
    half = NORMAL_95 * sqrt(share * (1 - share) / total + squared / (4 * total**2)) / (1 + squared / total)
    return max(0.0, middle - half), min(1.0, middle + half)


def read_confusions(data: object) -> list[Confusion]:
    """Read the confusion matrices in result.json, by head; malformed ones are skipped."""
    return _read_heads(data, _read_confusion)


def _read_heads(data: object, read: Callable[[str, Any], HeadTable | None]) -> list[HeadTable]:
    """Apply `read` to each head's name and value in a mapping, and drop None and malformed values."""
    heads: Iterable[tuple[Any, Any]] = data.items() if isinstance(data, Mapping) else ()
    tables = []
    for head, value in heads:
        try:
            tables.append(read(printable(str(head)), value))
        except (KeyError, TypeError, ValueError, OverflowError):
            continue
    return [table for table in tables if table is not None]


def _read_confusion(head: str, value: Any) -> Confusion | None:
    classes = tuple(printable(str(name)) for name in value["classes"])
    matrix = tuple(tuple(int(count) for count in row) for row in value["matrix"])
    is_square = len(matrix) == len(classes) > 0 and all(len(row) == len(classes) for row in matrix)
    is_valid = is_square and all(0 <= count <= 2**53 for row in matrix for count in row)  # exact as a float
    return Confusion(head, classes, matrix) if is_valid else None


@dataclass(frozen=True)
class LabelRow:
    """A label: samples that have it, samples predicted to have it, correct predictions, and the average precision."""

    name: str
    true: int
    guessed: int
    hits: int
    average_precision: float

    @property
    def f1(self) -> float:
        """Compute the harmonic mean of precision and recall; 0 if neither is defined."""
        return 2 * self.hits / (self.true + self.guessed) if self.true + self.guessed else 0.0

    def format_cells(self) -> tuple[str, ...]:
        """Format the row under HEADER; a dash where a number is not defined."""
        precision = f"{self.hits / self.guessed:.3f}" if self.guessed else "-"
        recall, area = (
            f"{x:.3f}" if self.true else "-" for x in (self.hits / max(1, self.true), self.average_precision)
        )
        f1 = f"{self.f1:.3f}" if self.true + self.guessed else "-"
        return (shorten(self.name, 60), f"{self.true:,}", f"{self.guessed:,}", precision, recall, f1, area)


@dataclass(frozen=True)
class LabelTable:
    """The labels of one head; the name is empty if it is the only head."""

    head: str
    samples: int
    rows: tuple[LabelRow, ...]


def read_label_tables(data: object) -> list[LabelTable]:
    """Read the tables in result.json, by head; malformed ones are skipped."""
    return _read_heads(data, _read_label_table)


def _read_label_table(head: str, value: Any) -> LabelTable | None:
    rows = [
        LabelRow(printable(str(name)), int(true), int(guessed), int(hits), float(area))
        for name, (true, guessed, hits, area) in zip(value["classes"], value["labels"], strict=True)
    ]
    is_valid = all(0 <= row.hits <= min(row.true, row.guessed) and 0 <= row.average_precision <= 1.001 for row in rows)
    return LabelTable(head, int(value["samples"]), tuple(rows)) if is_valid and rows else None
