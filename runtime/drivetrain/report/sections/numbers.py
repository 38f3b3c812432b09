"""Predicted numbers against the true ones, and the largest errors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import isfinite
from typing import Any

from drivetrain.report.blocks import Block, Dot, Scatter, Section, Table, Text, Tone
from drivetrain.report.formatting import format_json, shorten
from drivetrain.system.printable import printable
from drivetrain.system.run_records import read_objects

MAX_PLOTS = 6
"""Columns of numbers that have a plot."""


def number_sections(confusion: object, mistakes: Mapping[str, object]) -> Iterator[Section]:
    """A section for each head of numbers in the evaluation whose weights were kept.

    Args:
        confusion: of result.json: by head the columns, and pairs of true and predicted numbers.
        mistakes: of mistakes.json: by head the samples with the largest errors.
    """
    for head, record in confusion.items() if isinstance(confusion, Mapping) else ():
        if not isinstance(record, Mapping) or "pairs" not in record:
            continue
        columns = [printable(str(name)) for name in record.get("columns") or ()]
        blocks: list[Block] = [*_plots(columns, record["pairs"])]
        error_rows = [row for item in read_objects(mistakes, head) if (row := _error_row(item, columns))]
        if error_rows:
            blocks.append(
                Text("The samples with the largest errors, relative to the spread of the training data.", Tone.QUIET)
            )
            blocks.append(Table(("sample", "column", "true", "predicted", "error"), tuple(error_rows)))
        if blocks:
            of_head = f" of {format_json(head)}" if head else ""
            yield Section(f"numbers{of_head.replace(' ', '-')}", f"Predicted against true{of_head}", tuple(blocks))


def _plots(columns: list[str], pairs: object) -> Iterator[Scatter]:
    """A plot for each column: each validation sample of a fixed choice is a dot, on the diagonal if it is right."""
    for index, column in enumerate(columns[:MAX_PLOTS]):
        dots = tuple(dot for pair in (pairs if isinstance(pairs, list) else ()) if (dot := _dot(pair, index)))
        if dots:
            title = f"{column}: predicted, over the true value, of {len(dots):,} samples"
            yield Scatter(title, "true", dots, (("sample", Tone.PLAIN),), has_diagonal=True)


def _dot(pair: Any, index: int) -> Dot | None:
    try:
        truth, answer = float(pair[0][index]), float(pair[1][index])
    except (IndexError, KeyError, TypeError, ValueError):
        return None
    return Dot(truth, answer, "sample") if isfinite(truth) and isfinite(answer) else None


def _error_row(row: Any, columns: list[str]) -> tuple[str, ...] | None:
    """The column of a sample with its largest relative error, and what was predicted."""
    try:
        errors = [
            (float(answer) - float(truth), float(truth), float(answer))
            for truth, answer in zip(row["truth"], row["answer"], strict=True)
        ]
        column = int(row.get("column", 0))
        error, truth, answer = errors[column]
        return (
            shorten(printable(str(row["title"])), 160),
            columns[column],
            f"{truth:.4g}",
            f"{answer:.4g}",
            f"{error:+.4g}",
        )
    except (IndexError, KeyError, TypeError, ValueError):
        return None
