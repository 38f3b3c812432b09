"""Rows of series, jobs that train on them, and what a split makes of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
from pyarrow import csv

from drivetrain.data.dataset import Split
from drivetrain.tasks import JOBS
from drivetrain.tasks.series.job import SeriesJob
from drivetrain.tasks.series.windows import SeriesSplit

Rows = dict[str, Any]


def job(train: Path, task: str = "series-classification", *, seed: int = 0, **data: object) -> SeriesJob:
    long = {} if train.suffix == ".npz" else {"time": "t", "label": "y", "window": 8, "stride": 3}
    spec = {
        "name": "t",
        "task": task,
        "data": {"train": str(train), "validation": 0.25, **long, **data},
        "train": {"seed": seed},
    }
    series_job = JOBS[task].model_validate(spec)
    assert isinstance(series_job, SeriesJob)
    return series_job


def write_rows(folder: Path, rows: Rows, name: str = "a.csv") -> Path:
    csv.write_csv(pyarrow.table(rows), folder / name)
    return folder / name


def one_series(count: int = 100) -> Rows:
    """One series of two channels; the class changes every 10 rows."""
    generator = np.random.default_rng(0)
    return {
        "t": np.arange(count),
        "a": generator.normal(5, 2, count),
        "b": generator.normal(-1, 0.1, count),
        "y": np.where(np.arange(count) // 10 % 2, "on", "off"),
    }


def three_series() -> Rows:
    """Three machines, their rows in turn."""
    rows = {name: np.repeat(cells, 3) for name, cells in one_series(60).items()}
    return rows | {"machine": np.tile(["m1", "m2", "m3"], 60), "a": np.arange(180) * 1.0}


def gather_windows(split: Split) -> Any:
    assert isinstance(split, SeriesSplit)
    return split.gather(np.arange(len(split)))[0].numpy()


def undo_scaling(data: Any, split: Split) -> Any:
    return gather_windows(split) * np.array(data.preprocessing["std"]) + np.array(data.preprocessing["mean"])


def list_window_ends(split: Split) -> list[int]:
    """The row of the file, from 0, that each window ends in."""
    assert isinstance(split, SeriesSplit)
    return [int(split.title(i).rsplit(" ", 1)[1]) - 1 for i in range(len(split))]


def write_npz(folder: Path, x: Any, y: Any, name: str = "a.npz") -> Path:
    np.savez_compressed(folder / name, x=x, y=y)
    return folder / name


def make_windows(count: int = 40) -> tuple[Any, Any]:
    x = np.random.default_rng(0).normal(3, 2, (count, 6, 2)).astype(np.float32)
    return x, np.arange(count) % 4
