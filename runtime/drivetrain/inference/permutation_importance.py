"""Measures how much a network needs each input column: how much worse it gets if the column's values are permuted.

Permutation importance (Breiman 2001; Fisher, Rudin & Dominici 2019). A column keeps its values, but they no longer belong to
their rows. Correlated columns stand in for each other, so each looks less important than all of them together.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from drivetrain.data import stateless_random
from drivetrain.data.dataset import Inputs, Split, Targets
from drivetrain.data.stateless_random import Ids
from drivetrain.data.tables import features
from drivetrain.errors import SpecError
from drivetrain.inference.validation_samples import ValidationSamples
from drivetrain.job import lower_is_better
from drivetrain.job.formatting import format_metric, printable
from drivetrain.system.console import say_aside
from drivetrain.tasks import find_stored_modality

MAX_SECONDS = 60.0
"""Of all permutations; where more would be needed there are fewer repetitions, then fewer rows."""
LATEST_SECONDS = 90.0
"""When the fewest repetitions end, too: of thousands of columns, or on a machine that became slower."""
REPETITIONS, MIN_REPETITIONS = 10, 3
TIMED_ROWS, MIN_ROWS = 2000, 200
"""Rows that are timed first, and the smallest number of rows, however long they take."""
MAX_PRINTED = 8
"""Columns that are printed; the file has all."""
Parts = Sequence[tuple[int, int]]
"""Where a column is in the inputs of the network: index of the tensor, and of its last axis."""


@dataclass
class PermutedSplit:
    """Rows of a split; some columns have the values of other rows."""

    split: Split
    rows: Ids
    donors: Ids
    """The rows that the values of the permuted columns come from; shape of `rows`."""
    parts: Parts = ()
    """The permuted columns."""
    targets: Targets = field(init=False)

    def __post_init__(self) -> None:
        self.targets = {name: values[torch.from_numpy(self.rows)] for name, values in self.split.targets.items()}

    def __len__(self) -> int:
        return len(self.rows)

    def gather(self, ids: Ids) -> Inputs:
        """Return the raw inputs of these rows."""
        inputs = self.split.gather(self.rows[ids])
        donated = self.split.gather(self.donors[ids]) if self.parts else inputs
        for index, column in self.parts:
            inputs[index][..., column] = donated[index][..., column]
        return inputs

    def title(self, index: int) -> str:
        """Return the name of a row."""
        return self.split.title(int(self.rows[index]))


def list_columns(preprocessing: Mapping[str, Any]) -> dict[str, Parts]:
    """List the input columns of a table, each with its places in the inputs.

    A number is permuted with its mark for missing values, and a date with all numbers made from it.
    """
    fitted = features.from_json(preprocessing)
    date_columns: dict[str, str] = {}
    for name, date_features in fitted.dates.parts.items():
        date_columns |= dict.fromkeys((f"{name}.{feature}" for feature in date_features), name)
    columns: dict[str, list[tuple[int, int]]] = {}
    end = 0
    for number in fitted.numbers:
        start, end = end, end + 1 + number.missing
        columns.setdefault(date_columns.get(number.name, number.name), []).extend((0, i) for i in range(start, end))
    for index, category in enumerate(fitted.categories):
        name = date_columns.get(category.name, category.name)
        columns.setdefault(name, []).append((1 if fitted.numbers else 0, index))
    return dict(columns)


def explain(samples: ValidationSamples, mistakes: Sequence[int]) -> dict[str, object]:
    """Measure and print the importance of the columns of a run; returns plain JSON data."""
    say_aside(f"explain: permutes each column, for about {MAX_SECONDS:.0f} s at most")
    result = measure_importance(samples)
    for row in result["columns"][:MAX_PRINTED]:
        change = f"{format_metric(row['mean'])} ± {format_metric(row['spread'])}"
        say_aside(f"explain: without {printable(row['column'])}, {samples.metric} is worse by {change}")
    if result["unmeasured"]:
        say_aside(f"explain: there was no time for {result['unmeasured']:,} columns")
    say_aside(
        f"explain: {result['rows']:,} of {result['of']:,} rows, {result['repetitions']} permutations of each column"
    )
    return {"importance": result}


def measure_importance(samples: ValidationSamples) -> dict[str, Any]:
    """Measure the importance of the columns on the validation rows, in about MAX_SECONDS at most.

    Returns:
        Plain JSON data: the metric and its value, the numbers of rows, repetitions and unmeasured columns, and for each measured
        column, the most important first, the mean loss in the metric (`mean`) and its standard deviation (`spread`).

    Raises:
        SpecError: if the metric is no number on these rows.
    """
    preprocessing, split = samples.data.preprocessing, samples.data.validation
    columns: dict[str, Parts] = find_stored_modality(preprocessing).list_columns(preprocessing)
    rows = _choose_rows(samples, len(columns))
    value = samples.measure(PermutedSplit(split, rows, rows))
    if not math.isfinite(value):
        raise SpecError(
            f"--explain: {samples.metric} is {value} on the validation rows",
            "a metric that is a number, which gets worse without a column",
            "look at the run's report: its training diverged, or its validation rows have no labels",
        )
    direction = 1.0 if lower_is_better(samples.metric) else -1.0
    changes: dict[str, list[float]] = {name: [] for name in columns}
    start, repetition = time.monotonic(), 0
    for repetition in range(1, REPETITIONS + 1):
        for name, places in columns.items():
            if time.monotonic() - start > LATEST_SECONDS:
                break
            generator = stateless_random.make_generator(samples.seed, "importance", repetition, name)
            permuted = PermutedSplit(split, rows, generator.permutation(rows), places)
            changes[name].append(direction * (samples.measure(permuted) - value))
        if repetition >= MIN_REPETITIONS and (time.monotonic() - start) * (repetition + 1) / repetition > MAX_SECONDS:
            break
    measured = [
        {"column": name, "mean": float(np.mean(c)), "spread": float(np.std(c, ddof=min(1, len(c) - 1)))}
        for name, c in changes.items()
        if c
    ]
    used = {"metric": samples.metric, "value": value, "rows": len(rows), "of": len(split), "repetitions": repetition}
    return {
        **used,
        "unmeasured": len(columns) - len(measured),
        "columns": sorted(measured, key=lambda row: -row["mean"]),
    }


def _choose_rows(samples: ValidationSamples, column_count: int) -> Ids:
    """Choose all validation rows, or as many of them as the fewest repetitions can take in time."""
    split = samples.data.validation
    rows = np.arange(len(split), dtype=np.int64)
    start = time.monotonic()
    samples.measure(PermutedSplit(split, rows[:TIMED_ROWS], rows[:TIMED_ROWS]))
    row_seconds = (time.monotonic() - start) / len(rows[:TIMED_ROWS])
    count = max(MIN_ROWS, int(MAX_SECONDS / (MIN_REPETITIONS * column_count * row_seconds)))
    generator = stateless_random.make_generator(samples.seed, "importance")
    return rows if count >= len(rows) else np.sort(generator.choice(rows, count, replace=False))
