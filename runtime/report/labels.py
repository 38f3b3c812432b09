"""The counts of each label of one head with labels that can be true together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from runtime.report.formatting import short
from runtime.system.printable import printable

HEADER = ("label", "samples", "predicted", "precision", "recall", "F1", "average precision")


@dataclass(frozen=True)
class LabelRow:
    """One label: samples that have it, samples that were predicted to, both, and the average precision."""

    name: str
    true: int
    guessed: int
    both: int
    average_precision: float

    @property
    def f1(self) -> float:
        """The harmonic mean of precision and recall; 0 if neither is defined."""
        return 2 * self.both / (self.true + self.guessed) if self.true + self.guessed else 0.0

    def cells(self) -> tuple[str, ...]:
        """The row under HEADER; a dash where a number is not defined."""
        precision = f"{self.both / self.guessed:.3f}" if self.guessed else "-"
        recall, area = (
            f"{x:.3f}" if self.true else "-" for x in (self.both / max(1, self.true), self.average_precision)
        )
        f1 = f"{self.f1:.3f}" if self.true + self.guessed else "-"
        return (short(self.name, 60), f"{self.true:,}", f"{self.guessed:,}", precision, recall, f1, area)


@dataclass(frozen=True)
class LabelTable:
    """The labels of one head; the name is empty if it is the only head."""

    head: str
    samples: int
    rows: tuple[LabelRow, ...]


def label_tables(data: object) -> list[LabelTable]:
    """The tables in result.json, by head; malformed ones are skipped."""
    heads: Iterable[tuple[Any, Any]] = data.items() if isinstance(data, Mapping) else ()
    found = (_table(printable(str(head)), value) for head, value in heads)
    return [table for table in found if table]


def _table(head: str, value: Any) -> LabelTable | None:
    try:
        rows = [
            LabelRow(printable(str(name)), int(true), int(guessed), int(both), float(area))
            for name, (true, guessed, both, area) in zip(value["classes"], value["labels"], strict=True)
        ]
        samples = int(value["samples"])
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
    good = all(0 <= row.both <= min(row.true, row.guessed) and 0 <= row.average_precision <= 1.001 for row in rows)
    return LabelTable(head, samples, tuple(rows)) if good and rows else None
