"""The final weights of a run are the best that can be read; a message says if they are not from the best evaluation."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch

from drivetrain.errors import CheckpointError
from drivetrain.system import fault_points
from drivetrain.training import effective_settings, epoch, final_model, run
from drivetrain.training.best_metric import BestMetric
from drivetrain.training.evaluation import validation
from drivetrain.training.train import train as train_run
from tests import tiny
from tests.messages import ends_with, get_message, says_each, says_only
from tests.training.checkpoints.damage import flip


def train_to_end(
    folder: Path, spoil: Callable[[run.Run], None], train: str = "", *, epochs: int = 3, extra_spec: str = ""
) -> run.Run:
    """A run of the tiny job that is conducted to its end; `spoil` is called when the last evaluation is done."""
    training_run = tiny.assemble_run(folder, tiny.job(train=train, epochs=epochs, sections=extra_spec))

    def listen(moment: str, *subjects: Any) -> None:
        if moment == "trained":
            spoil(subjects[0])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fault_points, "listener", listen)
        patch.setattr(effective_settings, "record_changes", lambda *arguments: None)
        train_run(training_run)
    return training_run


def result(folder: Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return record


def read_events(folder: Path) -> list[str]:
    path = folder / "events.jsonl"
    return [json.loads(line)["text"] for line in path.read_text().splitlines()] if path.exists() else []


def bests(training_run: run.Run) -> list[Path]:
    return sorted(training_run.checkpoints.glob("best-*"), key=lambda path: int(path.name.removeprefix("best-")))


def test_the_best_checkpoint_is_chosen_without_an_event(tmp_path: Path) -> None:
    training_run = train_to_end(tmp_path, lambda training_run: None)
    assert read_events(tmp_path) == []
    assert result(tmp_path)["best"]["step"] == training_run.best_metric.best.step


@pytest.mark.parametrize(
    "damage", [lambda path: shutil.rmtree(path), lambda path: flip(path / "model.safetensors")], ids=["gone", "flipped"]
)
def test_unreadable_best_checkpoint_falls_back(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    """Only one was ever the best here: the last step's weights are left."""
    training_run = train_to_end(tmp_path, lambda training_run: [damage(path) for path in bests(training_run)] and None)  # type: ignore[arg-type]
    (text,) = read_events(tmp_path)
    assert "best-" in text
    assert ends_with(text, "model-weights-last-step", 12)
    assert result(tmp_path)["best"] | {"metrics": 0} == {
        "metric": "validation/accuracy",
        "value": None,
        "step": 12,
        "epoch": 3,
        "metrics": 0,
    }
    final_weights = safetensors.torch.load_file(tmp_path / "model" / "model.safetensors")
    assert all(final_weights[name].equal(value) for name, value in training_run.model.state_dict().items())
    assert json.loads((tmp_path / "model" / "config.json").read_text())["trained"]["step"] == 12


def test_an_older_best_comes_before_the_last_step(tmp_path: Path) -> None:
    def spoil(training_run: run.Run) -> None:
        shutil.rmtree(bests(training_run)[-1])

    def better(training_run: run.Run) -> tuple[dict[str, float], dict[str, Any]]:
        return {
            "validation/loss": 1.0,
            "validation/accuracy": training_run.counters.epoch / 10,
            "validation/f1": 0.5,
        }, {}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(epoch, "evaluate", better)
        train_to_end(tmp_path, spoil, extra_spec="checkpoint: {every: epoch}")
    assert ends_with(read_events(tmp_path)[0], "model-older-best-best", "validation/accuracy", "0.1000", 2)
    assert result(tmp_path)["best"]["step"] == 8


def test_no_evaluation_gives_a_number(tmp_path: Path) -> None:
    def bad(training_run: run.Run) -> tuple[dict[str, float], dict[str, Any]]:
        metrics, confusion = validation.evaluate(training_run)
        return metrics | {"validation/loss": math.nan, "validation/accuracy": math.nan}, confusion

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(epoch, "evaluate", bad)
        train_to_end(
            tmp_path, lambda training_run: None, "early_stopping: {metric: validation/loss, patience: 2}", epochs=9
        )
    assert says_each(read_events(tmp_path), [get_message("evaluation-gave-value-number", "validation/accuracy", 8)])
    assert says_only(result(tmp_path)["stopped_because"], "improved-evaluations-never-number", "validation/loss", 2)
    assert (tmp_path / "model" / "model.safetensors").exists()


def test_nothing_can_be_read(tmp_path: Path) -> None:
    training_run = train_to_end(tmp_path, lambda training_run: None)
    shutil.rmtree(training_run.checkpoints)
    with pytest.raises(CheckpointError, match=r"no checkpoint can be read: checkpoint .*best-"):
        final_model.choose_weights(training_run)


def test_a_metric_that_is_always_nan_stops_early() -> None:
    from drivetrain.job.train import EarlyStopping

    watch = BestMetric("validation/loss", EarlyStopping(metric="validation/loss", patience=2), None)
    for number in range(2):
        assert not watch.update({"validation/loss": math.nan}, number, number)
    assert says_only(watch.reason_to_stop(), "improved-evaluations-never-number", "validation/loss", 2)
