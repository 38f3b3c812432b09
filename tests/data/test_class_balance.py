"""The counts of classes, and what uneven ones change."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from drivetrain.data import class_balance
from drivetrain.data.dataset import InputRecord
from drivetrain.data.load_data import load
from drivetrain.data.survey import settings
from drivetrain.job_spec import load_job
from drivetrain.tasks.image.job import ImageClassificationJob
from drivetrain.training.best_metric import BestMetric
from tests.data.tables import table_rows as tables
from tests.messages import begins_with, ends_with, omits, says


def job(folder: Path, large: int, small: int, **checkpoint: str) -> ImageClassificationJob:
    images = np.random.default_rng(0).integers(0, 256, (large + small, 8, 8), dtype=np.uint8)
    np.savez(folder / "x.npz", images=images, labels=np.array(["ok"] * large + ["broken"] * small))
    data = {"train": str(folder / "x.npz"), "validation": 0.25}
    spec = {"name": "t", "task": "image-classification", "data": data, "checkpoint": checkpoint}
    return ImageClassificationJob.model_validate(spec)


@pytest.mark.parametrize(("large", "small", "metric"), [(196, 4, "f1"), (80, 20, "f1"), (72, 24, "accuracy")])
def test_accuracy_does_not_choose_among_uneven_classes(tmp_path: Path, large: int, small: int, metric: str) -> None:
    table_job = job(tmp_path, large, small)
    data = load(table_job)
    assert class_balance.choose_best_metric(table_job, data) == f"validation/{metric}"
    assert (says if metric == "f1" else omits)(data.notes, "best-checkpoint-chosen")
    assert (says if metric == "f1" else omits)(data.notes, "chosen-by-not-by", "validation/f1", "validation/accuracy")
    assert begins_with(data.notes, "classes-training-ok-broken", large * 3 // 4, small * 3 // 4)


@pytest.mark.parametrize(("large", "metric"), [(90, "loss"), (60, "f1")])
def test_the_loss_chooses_among_uneven_classes_of_tables(tmp_path: Path, large: int, metric: str) -> None:
    table = tables.job(
        tables.write_rows(
            tmp_path, {"x": np.random.default_rng(0).random(120), "y": np.where(np.arange(120) < large, "a", "b")}
        )
    )
    data = load(table)
    assert class_balance.choose_best_metric(table, data) == f"validation/{metric}"
    assert (says if metric == "loss" else omits)(data.notes, "chosen-by-not-by", "validation/loss", "validation/f1")


def test_a_metric_of_the_job_stays(tmp_path: Path) -> None:
    table_job = job(tmp_path, 196, 4, best="validation/accuracy")
    data = load(table_job)
    assert class_balance.choose_best_metric(table_job, data) == "validation/accuracy"
    assert omits(data.notes, "best-checkpoint-chosen")


def test_a_resumed_run_goes_on_with_its_metric(tmp_path: Path) -> None:
    table_job = job(tmp_path, 196, 4)
    data = load(table_job)
    before = BestMetric("validation/accuracy", None, None)
    watch = BestMetric(class_balance.choose_best_metric(table_job, data), None, None)
    watch.load(before.state())
    assert watch.best.metric == "validation/accuracy"
    resumed = load(table_job, InputRecord(data.preprocessing, data.heads))
    assert omits(resumed.notes, "best-checkpoint-chosen")


def test_the_model_that_always_says_ok_is_not_the_best(tmp_path: Path) -> None:
    table_job = job(tmp_path, 196, 4)
    watch = BestMetric(class_balance.choose_best_metric(table_job, load(table_job)), None, None)
    assert watch.update({"validation/accuracy": 0.98, "validation/f1": 0.495, "validation/loss": 0.1}, 1, 0)
    assert watch.update({"validation/accuracy": 0.94, "validation/f1": 0.71, "validation/loss": 0.2}, 2, 1)


@pytest.mark.parametrize("named", [True, False])
def test_a_class_without_a_validation_sample_is_named(tmp_path: Path, named: bool) -> None:
    rows = [f"{i % 11},{'abc'[i % 3]}" for i in range(60)]
    (tmp_path / "t.csv").write_text("\n".join(["x,y", *rows]) + "\n")
    (tmp_path / "v.csv").write_text("\n".join(["x,y", *(row for row in rows if not named or row[-1] != "c")]) + "\n")
    spec = tmp_path / "job.yaml"
    spec.write_text(
        "name: t\ntask: tabular-classification\ndata: {train: t.csv, validation: v.csv, target: y, categorical: [x]}\n"
    )
    notes = load(load_job.load(spec)).notes
    if named:
        assert says(notes, "class-without-validation-sample", 1, 3, "c")
    else:
        assert omits(notes, "class-without-validation-sample", 1, 3, "c")


def test_classes_that_are_probably_no_value_are_named() -> None:
    text = class_balance.describe_counts(np.array([9, 4, 8]), ("good", "NaN", "none"))
    assert ends_with(text, "probably-value-nan-leaves", "data.missing")
    assert says(settings.format_counts({"good": 90, "NaN": 4}), "probably-value-nan")
