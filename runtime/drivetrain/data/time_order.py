"""Finds tables with rows in the order of time: their random split says little about later rows."""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from drivetrain.data.formats import table_file, table_paths, times
from drivetrain.data.formats.csv_dialect import CsvFiles
from drivetrain.data.source import Source
from drivetrain.errors import DataError
from drivetrain.job import Job
from drivetrain.tasks import modality_of

if TYPE_CHECKING:
    import pyarrow

COMPARED_ROWS = 5_000
"""Number of rows at the start of a file used to recognize its order."""
MIN_STEPS = 10
"""Smallest number of changes of the time between successive rows that show an order."""
ORDER_SHARE = 0.95
"""Smallest share of these changes in one direction; the others occur where the next of several series begins."""


def find_column(table: pyarrow.Table, source: Source, skipped: Collection[str] = ()) -> str:
    """Find the first column of times that rises, or falls, in nearly all rows; empty if there is none."""
    for name in table.column_names:
        form = None if name in skipped else times.recognize(table[name], name)
        if form is None or times.has_clock_alone(form):
            continue
        for tried in form.split(" or "):
            with contextlib.suppress(DataError):
                parsed_times = times.read(table[name], name, source, None if tried == times.ISO else tried)
                ticks = parsed_times.values.drop_null().cast("timestamp[us]", safe=False).cast("int64").to_numpy()
                steps = np.sign(np.diff(ticks))
                steps = steps[steps != 0]
                if len(steps) >= MIN_STEPS and abs(steps.sum()) >= (2 * ORDER_SHARE - 1) * len(steps):
                    return str(name)
    return ""


def find_random_split(job: Job, files: CsvFiles) -> str:
    """Find the column of times that orders the rows of a job with a random split; empty if there is none."""
    data = job.data
    is_random = job.data_path("validation") is None and getattr(data, "groups", None) is None
    if modality_of(job).is_ordered or not is_random or not job.data_paths():
        return ""
    path = job.resolve(data.train)
    if path.suffix.lower() not in table_paths.SUFFIXES or not path.is_file():
        return ""
    sample, _ = table_file.head(path, "data.train", COMPARED_ROWS, replace(files, notes=[], rewritten=set()))
    return find_column(sample, Source(path, "data.train"), getattr(data, "target", ()))


def describe(column: str) -> str:
    """Describe the order, and suggest a better split."""
    return (
        f"the rows are in the order of {column}, and the split is RANDOM: the score says nothing about later rows; for that put the "
        "latest rows into a file for data.validation"
    )
