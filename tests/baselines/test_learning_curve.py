"""The learning curve shows whether more data would help."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from drivetrain.baselines import measure
from drivetrain.baselines.measure import describe_learning_curve
from drivetrain.data.load_data import load
from drivetrain.job import Job
from drivetrain.job_spec import load_job
from tests.messages import says


def write_job(folder: Path, rows: int, columns: int) -> Job:
    """A table whose many columns a linear model learns from more and more rows."""
    draw = np.random.default_rng(0)
    values = draw.normal(size=(rows, columns))
    truth = values @ np.ones(columns) > 0
    names = [f"x{number}" for number in range(columns)]
    lines = [
        ",".join([*(f"{x:.3f}" for x in row), "ny"[one]]) for row, one in zip(values, truth.astype(int), strict=True)
    ]
    (folder / "a.csv").write_text("\n".join([",".join([*names, "y"]), *lines]) + "\n")
    (folder / "a.yaml").write_text(
        "name: a\ntask: tabular-classification\ndata: {train: a.csv, target: y, validation: 0.5}\n"
        "checkpoint: {best: validation/accuracy}\n"
    )
    return load_job.load(folder / "a.yaml")


@pytest.mark.parametrize(("rows", "columns", "verdict"), [(160, 40, "would probably"), (800, 1, "would hardly")])
def test_the_last_doubling_says_whether_more_would_help(tmp_path: Path, rows: int, columns: int, verdict: str) -> None:
    job = write_job(tmp_path, rows, columns)
    text = describe_learning_curve(job, load(job))
    assert verdict in text
    assert all(f" with {rows // part} samples" in text for part in (8, 4, 2))


def test_a_gain_of_unknown_uncertainty_promises_nothing(tmp_path: Path) -> None:
    job = write_job(tmp_path, 160, 40)
    job = job.model_copy(update={"checkpoint": job.checkpoint.model_copy(update={"best": "validation/auc"})})
    assert "would" not in describe_learning_curve(job, load(job))


def test_without_time_or_models_there_is_no_curve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = write_job(tmp_path, 80, 2)
    monkeypatch.setattr(measure, "CURVE_SECONDS", 0.0)
    assert says(describe_learning_curve(job, load(job)), "more-data-no-curve", 0)
    monkeypatch.setattr(measure, "find_spec", lambda name: None)
    assert "pip install" in describe_learning_curve(job, load(job))
