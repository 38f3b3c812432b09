"""Rows of tables, and jobs that train on them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
from pyarrow import parquet

from drivetrain.job.tables import TableJob
from drivetrain.tasks import JOBS

Rows = dict[str, Any]


def job(train: Path, task: str = "tabular-classification", *, seed: int = 0, **data: object) -> TableJob:
    spec = {
        "name": "t",
        "task": task,
        "data": {"train": str(train), "target": "y", "validation": 0.25, **data},
        "train": {"seed": seed},
    }
    table_job = JOBS[task].model_validate(spec)
    assert isinstance(table_job, TableJob)
    return table_job


def write_rows(folder: Path, rows: Rows, name: str = "a.parquet") -> Path:
    parquet.write_table(pyarrow.table(rows), folder / name)
    return folder / name


def make_mixed_rows(count: int = 80) -> Rows:
    """Numbers with gaps, text with gaps, truth values, a code, and a class that depends on two of them."""
    generator = np.random.default_rng(0)
    size, colour = generator.normal(50, 10, count), generator.choice(["red", "green", "blue"], count)
    return {
        "size": pyarrow.array(size, mask=np.arange(count) % 10 == 3),
        "count": generator.integers(0, 100, count),
        "colour": pyarrow.array(colour, mask=np.arange(count) % 8 == 5),
        "code": generator.integers(1, 4, count),
        "new": generator.random(count) < 0.5,
        "y": np.where((size > 50) ^ (colour == "red"), "big", "small"),
    }
