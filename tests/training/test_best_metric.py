"""Best, early stopping and plateau."""

from __future__ import annotations

import contextlib
import math
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch

from drivetrain.data.dataset import Head
from drivetrain.job import Checkpoint, Job, lower_is_better
from drivetrain.job.tables import TableRegressionJob
from drivetrain.job.train import Constant, EarlyStopping, Plateau
from drivetrain.tasks.image.job import ImageRegressionJob
from drivetrain.tasks.series.job import SeriesRegressionJob
from drivetrain.training.best_metric import BestMetric, choose_metric
from drivetrain.training.epoch import record_evaluation
from drivetrain.training.evaluation.scores import build_scores
from tests.messages import get_message, says_each, says_only

CONSTANT = Constant(name="constant")


def metrics(loss: float, accuracy: float = 0.0) -> dict[str, float]:
    return {"validation/loss": loss, "validation/accuracy": accuracy}


def test_best_is_highest_accuracy_and_lowest_loss() -> None:
    up, down = BestMetric("validation/accuracy", None, CONSTANT), BestMetric("validation/loss", None, CONSTANT)
    rows = [(1.0, 0.5), (0.8, 0.4), (0.9, 0.6), (0.9, 0.6)]
    assert [up.update(metrics(*row), i, i) for i, row in enumerate(rows)] == [True, False, True, False]
    assert [down.update(metrics(*row), i, i) for i, row in enumerate(rows)] == [True, True, False, False]


def test_of_equal_values_the_one_with_the_lower_loss_is_best() -> None:
    """On a small validation set the accuracy reaches 1 early, when the network is still unsure."""
    watch = BestMetric("validation/accuracy", None, CONSTANT)
    rows = [(0.3, 1.0), (0.4, 1.0), (0.2, 1.0), (math.nan, 1.0), (0.1, 0.9), (0.2, 1.0)]
    assert [watch.update(metrics(*row), i, i) for i, row in enumerate(rows)] == [True, False, True, False, False, False]
    restored = BestMetric("validation/accuracy", None, CONSTANT)
    restored.load(watch.state())
    assert not restored.update(metrics(0.25, 1.0), 6, 6)
    assert restored.update(metrics(0.15, 1.0), 7, 7)


def test_nan_is_never_best() -> None:
    watch = BestMetric("validation/loss", None, CONSTANT)
    assert not watch.update(metrics(math.nan), 1, 0)
    assert watch.update(metrics(5.0), 2, 1)


def test_early_stopping_counts_from_the_last_improvement() -> None:
    watch = BestMetric("validation/accuracy", EarlyStopping(metric="validation/loss", patience=2), CONSTANT)
    stops = []
    for epoch, loss in enumerate([1.0, 0.9, 0.95, 0.8, 0.81, 0.82]):
        watch.update(metrics(loss), epoch, epoch)
        stops.append(watch.reason_to_stop() is not None)
    assert stops == [False, False, False, False, False, True]
    assert says_only(watch.reason_to_stop(), "improved-evaluations-best-after", "validation/loss", 2, "0.8", 4)


def test_plateau_lowers_the_rate() -> None:
    watch = BestMetric("validation/accuracy", None, Plateau(name="plateau", patience=1, factor=0.5))
    factors = []
    for epoch, loss in enumerate([1.0, 1.0, 1.0, 1.0, 1.0]):
        watch.update(metrics(loss), epoch, epoch)
        factors.append(watch.factor())
    assert factors == [1.0, 1.0, 0.5, 0.5, 0.25]


def test_best_metric_state_is_restored() -> None:
    plateau = Plateau(name="plateau", patience=1, factor=0.5)
    uninterrupted, before_stop, restored = (
        BestMetric("validation/loss", EarlyStopping(metric="validation/loss", patience=9), plateau) for _ in range(3)
    )
    losses = [1.0, 0.9, 0.9, 0.95, 0.9, 0.9]
    for i, loss in enumerate(losses):
        uninterrupted.update(metrics(loss), i, i)
    for i, loss in enumerate(losses[:3]):
        before_stop.update(metrics(loss), i, i)
    restored.load(before_stop.state())
    for i, loss in enumerate(losses[3:], start=3):
        restored.update(metrics(loss), i, i)
    assert restored.state() == uninterrupted.state()


def test_between_equal_values_the_line_says_that_the_loss_decided() -> None:
    """Two lines with the same accuracy said `best`, and nobody knew why the second did."""
    marks: list[str] = []
    run = SimpleNamespace(
        counters=SimpleNamespace(step=0, epoch=0, batch=0),
        time_target=None,
        clock=SimpleNamespace(seconds=0.0),
        batches=SimpleNamespace(per_epoch=1),
        signals=SimpleNamespace(protect_section=contextlib.nullcontext),
        best_metric=BestMetric("validation/accuracy", None, None),
        metrics=MagicMock(),
        user_parts=MagicMock(),
        stop_reason="",
        collect_info=MagicMock(),
        folder=None,
        total_steps=9,
        total_epochs=5,
        last_metrics={},
    )
    progress = SimpleNamespace(report_evaluation=lambda run, best: marks.append(best))
    saver = SimpleNamespace(save_best=lambda notes: None, is_due=lambda epoch_ended: False)
    records = SimpleNamespace(saver=saver, progress=progress)
    for accuracy, loss in ((0.5, 0.9), (0.8, 0.7), (0.8, 0.6), (0.8, 0.65), (0.9, 0.8)):
        run.last_metrics = {"validation/accuracy": accuracy, "validation/loss": loss}
        record_evaluation(run, records, {})  # type: ignore[arg-type]
    assert says_each(marks, ["best", "best", get_message("best-by-its-loss"), "", "best"])


REGRESSIONS: dict[str, tuple[type[Job], dict[str, object]]] = {
    "images": (ImageRegressionJob, {"label_column": ["wear", "price"]}),
    "tables": (TableRegressionJob, {"target": ["wear", "price"]}),
    "series": (SeriesRegressionJob, {"label": ["wear", "price"], "window": 4}),
}


def regression(kind: str, **data: object) -> Job:
    job, columns = REGRESSIONS[kind]
    keys = columns | {"train": "x.csv"} | data
    return job.model_validate({"name": "t", "task": f"{TASKS[kind]}-regression", "data": keys})


def with_head(head: Head) -> Any:
    """As much of a data set as the choice of a metric for numbers looks at."""
    return SimpleNamespace(heads={"": head}, train=None)


TASKS = {"images": "image", "tables": "tabular", "series": "series"}


@pytest.mark.parametrize("kind", REGRESSIONS)
def test_the_unit_of_a_column_does_not_choose_the_best_epoch(kind: str) -> None:
    """The second epoch is far better for wear and hardly worse for the price, whose unit is larger."""
    job = regression(kind)
    head = Head("", columns=("wear", "price"), mean=(0.5, 20000.0), std=(0.25, 9000.0))
    best_metric = BestMetric(choose_metric(job, with_head(head)), None, CONSTANT)
    raw_errors = []
    for step, errors in enumerate(((0.9, 1.0), (0.1, 1.02))):
        tally = build_scores(head)
        tally.update(torch.tensor([errors]) * torch.ones(8, 1), torch.zeros(8, 2))
        epoch_metrics = {f"validation/{name}": value for name, value in tally.compute().items()} | {
            "validation/loss": 0.0
        }
        assert set(epoch_metrics) == set(job.metrics())
        raw_errors.append(epoch_metrics["validation/rmse"])
        assert best_metric.update(epoch_metrics, step, step)
    assert raw_errors[1] > raw_errors[0]
    assert best_metric.best.metric == job.best() == "validation/scaled_rmse"
    assert all(lower_is_better(name) for name in job.metrics() if not name.endswith("r2"))


def test_a_single_column_and_a_choice_of_the_user_stay() -> None:
    one_column, two_columns = (Head("", columns=columns) for columns in (("wear",), ("wear", "price")))
    job = regression("tables", target=["wear"])
    assert choose_metric(job, with_head(one_column)) == job.best() == "validation/rmse"
    # Columns that only the data has, as in an .npz.
    assert (
        choose_metric(regression("images", label_column=["label"]), with_head(two_columns)) == "validation/scaled_rmse"
    )
    job_with_choice = regression("tables").model_copy(update={"checkpoint": Checkpoint(best="validation/price/rmse")})
    assert choose_metric(job_with_choice, with_head(two_columns)) == "validation/price/rmse"
