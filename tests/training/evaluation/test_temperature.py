"""The temperature of probabilities: found where it is known, bounded where little is known, and used by predictions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from drivetrain.data.dataset import Head
from drivetrain.inference import predictions
from drivetrain.models import saved_model
from drivetrain.training.evaluation import calibration
from drivetrain.training.evaluation.scores import ClassScores
from tests.messages import says
from tests.task_cases import CASES, collect_outputs, train_case


def draw_outputs(true_temperature: float, count: int = 4_000, classes: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    """Outputs, and classes drawn from their probabilities at a temperature."""
    generator = torch.Generator().manual_seed(0)
    outputs = 2 * torch.randn(count, classes, generator=generator)
    return outputs, (outputs / true_temperature).softmax(1).multinomial(1, generator=generator)[:, 0]


@pytest.mark.parametrize("most_values", [1 << 22, 100])
def test_losses_are_those_of_cross_entropy(monkeypatch: pytest.MonkeyPatch, most_values: int) -> None:
    monkeypatch.setattr(calibration, "MAX_VALUES_AT_ONCE", most_values)
    outputs, truth = draw_outputs(1.0, 50)
    expected = [
        float(torch.nn.functional.cross_entropy(outputs / value, truth, reduction="sum"))
        for value in calibration.TEMPERATURES
    ]
    assert calibration.sum_log_losses(outputs, truth).tolist() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("true_temperature", [0.4, 0.9, 1.0, 2.2, 5.0])
def test_the_true_temperature_is_found(true_temperature: float) -> None:
    outputs, truth = draw_outputs(true_temperature)
    scores = ClassScores(Head("", classes=("a", "b", "c")))
    for part in range(0, len(outputs), 1_000):
        scores.update(outputs[part : part + 1_000], truth[part : part + 1_000])
    choice = calibration.read_temperature({"": {"calibration": scores.calibration()}}, "")
    assert choice is not None
    assert choice.value == pytest.approx(true_temperature, rel=0.12)
    direct = float(torch.nn.functional.cross_entropy(outputs / choice.value, truth))
    assert choice.scaled_log_loss == pytest.approx(direct, abs=2e-3)
    assert choice.log_loss == pytest.approx(float(torch.nn.functional.cross_entropy(outputs, truth)), rel=1e-5)
    assert choice.scaled_log_loss <= choice.log_loss + 1e-6
    calibrated_scores = ClassScores(Head("", classes=("a", "b", "c"), temperature=choice.value))
    calibrated_scores.update(outputs, truth)
    assert calibrated_scores.compute()["ece"] < 0.03
    assert calibrated_scores.compute()["accuracy"] == scores.compute()["accuracy"]


def test_few_samples_without_a_mistake_do_not_make_it_infinitely_sure() -> None:
    scores = ClassScores(Head("", classes=("a", "b")))
    scores.update(torch.tensor([[1.0, 0.0]] * 5), torch.zeros(5, dtype=torch.int64))
    choice = calibration.read_temperature({"": {"calibration": scores.calibration()}}, "")
    assert choice is not None
    assert 0.4 < choice.value < 1


@pytest.mark.parametrize(("factor", "value"), [(100.0, 8.0), (0.01, 0.25)])
def test_the_end_of_the_range_is_known_as_such(factor: float, value: float) -> None:
    outputs, truth = draw_outputs(1.0)
    scores = ClassScores(Head("", classes=("a", "b", "c")))
    scores.update(outputs * factor, truth)
    choice = calibration.read_temperature({"": {"calibration": scores.calibration()}}, "")
    assert choice is not None
    assert choice.value == pytest.approx(value)
    assert choice.is_at_end
    inside = calibration.Temperature(1.0, 0.5, 0.5)
    assert not inside.is_at_end


def test_what_has_no_temperature() -> None:
    assert calibration.choose_temperature([0.5] * len(calibration.TEMPERATURES), 0) is None
    assert calibration.choose_temperature([float("nan")] * len(calibration.TEMPERATURES), 9) is None
    assert calibration.read_temperature({}, "") is None
    assert calibration.read_temperature({"": {"matrix": []}}, "") is None, "a run from before"


def test_a_run_stores_it_and_predictions_use_it(tmp_path: Path) -> None:
    run = train_case(CASES["table"], tmp_path)
    head = saved_model.load(run.folder).heads[""]
    assert head.temperature != 1
    assert json.loads((run.folder / "model" / "config.json").read_text())["heads"][0]["temperature"] == head.temperature
    outputs = collect_outputs(run)[""]
    torch.testing.assert_close(
        predictions.compute_probabilities(head, outputs), (outputs / head.temperature).softmax(1)
    )


@pytest.mark.parametrize(("count", "few"), [(999, True), (1000, False)])
def test_the_samples_that_it_rests_on_are_named(count: int, few: bool) -> None:
    record = {"": {"calibration": {"samples": count}}, "labels": {"samples": count}}
    texts = {calibration.describe_samples(record, head) for head in record}
    assert len(texts) == 1
    text = texts.pop()
    assert says(text, "validation-samples-chose-epoch", f"{count:,}")
    assert ("few" in text) == few
