"""The thresholds of predictions: the best ones, only where they gain more than chance explains, and used by all commands."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import sklearn.metrics
import torch

from drivetrain.data.dataset import Head, predict_classes
from drivetrain.inference import predictions
from drivetrain.inference.evaluate import EvaluateRequest, evaluate
from drivetrain.models import saved_model
from drivetrain.training import final_model, recorded_inputs
from drivetrain.training.checkpoints.checkpoint import Loaded
from drivetrain.training.evaluation import calibration
from drivetrain.training.evaluation.scores import ClassScores, LabelScores
from drivetrain.training.evaluation.validation import evaluate as evaluate_run
from drivetrain.training.final_model import FinalWeights
from tests.task_cases import CASES, collect_outputs, train_case

START = 0.497
"""Nearly untrained networks are not sure of anything."""


def draw_rows(shift: float, count: int = 2_000, labels: int = 1) -> torch.Tensor:
    """Outputs and truth (2, N, labels): a rare label whose outputs are too low by `shift`."""
    generator = torch.Generator().manual_seed(0)
    margins = 1.5 * torch.randn(count, labels, generator=generator) - 2
    truth = torch.bernoulli(margins.sigmoid(), generator=generator)
    return torch.stack([margins - shift, truth])


def as_classes(rows: torch.Tensor, head: Head) -> ClassScores:
    scores = ClassScores(head)
    scores.update(torch.cat([torch.zeros_like(rows[0]), rows[0]], dim=1), rows[1][:, 0].long())
    return scores


@pytest.mark.parametrize("metric", ["f1", "balanced_accuracy"])
def test_no_other_threshold_is_better(metric: str) -> None:
    rows = draw_rows(0.0, 300)
    head = Head("", classes=("no", "yes"))
    gains = as_classes(rows, head).measure_gains(metric)[metric]
    outputs, truth = rows[0, :, 0].numpy(), rows[1, :, 0].numpy()

    def score(start: float) -> float:
        if metric == "f1":
            return float(sklearn.metrics.f1_score(truth, outputs > start, average="macro"))
        return float(sklearn.metrics.balanced_accuracy_score(truth, outputs > start))

    assert score(gains[0][0]) == pytest.approx(max(score(start) for start in outputs))
    assert gains[0][1] == pytest.approx(score(0.0))


@pytest.mark.parametrize(("shift", "is_chosen"), [(2.0, True), (-0.4, False)])
def test_they_are_chosen_only_where_they_gain_more_than_chance(shift: float, is_chosen: bool) -> None:
    head = Head("", classes=("no", "yes"), temperature=2.0)
    record = {"": {"thresholds": as_classes(draw_rows(shift), head).measure_gains("f1")}}
    choice = calibration.choose_thresholds(record, head, "validation/f1")
    assert bool(choice) is is_chosen
    if choice:
        assert torch.tensor(choice[0]).logit() * 2 == pytest.approx(record[""]["thresholds"]["f1"][0][0], rel=1e-4)
        assert choice[0] < 0.5
    assert calibration.choose_thresholds(record, head, "validation/accuracy") == ()
    assert calibration.choose_thresholds({"": {"matrix": []}}, head, "validation/f1") == (), "a run from before"


@pytest.mark.parametrize("shift", [800.0, -800.0])
def test_outputs_that_no_probability_tells_apart_keep_one_half(shift: float) -> None:
    head = Head("", classes=("no", "yes"))
    record = {"": {"thresholds": as_classes(draw_rows(shift), head).measure_gains("f1")}}
    assert calibration.choose_thresholds(record, head, "validation/f1") == ()


@pytest.mark.parametrize("label", [0.0, 1.0])
def test_samples_of_one_class_have_none(label: float) -> None:
    rows = draw_rows(0.0)
    rows[1] = label
    head = Head("", classes=("no", "yes"))
    record = {"": {"thresholds": as_classes(rows, head).measure_gains("f1")}}
    assert calibration.choose_thresholds(record, head, "validation/f1") == ()


def test_scores_are_those_of_scikit_learn_and_those_at_half_stay_visible() -> None:
    head = Head("", classes=("no", "yes"), temperature=2.0, thresholds=(0.3,))
    rows = draw_rows(1.0)
    values = as_classes(rows, head).compute()
    truth, shares = rows[1, :, 0].numpy(), (rows[0, :, 0] / 2).sigmoid().numpy()
    assert values["f1"] == pytest.approx(sklearn.metrics.f1_score(truth, shares > 0.3, average="macro"))
    assert values["f1_at_half"] == pytest.approx(sklearn.metrics.f1_score(truth, shares > 0.5, average="macro"))


def test_each_label_has_its_own() -> None:
    head = Head("", classes=("a", "b"), several=True)
    rows = draw_rows(0.0, labels=2)
    rows[0, :, 0] -= 2
    scores = LabelScores(head)
    scores.update(rows[0], rows[1])
    choice = calibration.choose_thresholds({"": scores.to_json("f1")}, head, "validation/f1")
    assert choice[0] < 0.3
    tuned_scores = LabelScores(Head("", classes=("a", "b"), several=True, thresholds=choice))
    tuned_scores.update(rows[0], rows[1])
    shares = rows[0].double().sigmoid() > torch.tensor(choice, dtype=torch.float64)
    assert tuned_scores.compute()["f1"] == pytest.approx(sklearn.metrics.f1_score(rows[1], shares, average="macro"))
    assert tuned_scores.compute()["f1_at_half"] == scores.compute()["f1"] < tuned_scores.compute()["f1"]


def test_few_samples_or_one_class_have_none() -> None:
    for rows in (
        torch.zeros(2, 0, 1),
        torch.zeros(2, 1, 1),
        draw_rows(0.0, 50) * torch.tensor([1.0, 0.0]).view(2, 1, 1),
    ):
        gains = {"": {"thresholds": calibration.measure_gains(rows, calibration.CLASS_METRICS, "f1")}}
        assert calibration.choose_thresholds(gains, Head("", classes=("no", "yes")), "validation/f1") == ()


def test_a_run_stores_them_and_all_commands_use_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(calibration, "choose_thresholds", lambda *_: (START,))
    run = train_case(CASES["series"], tmp_path)
    head = saved_model.load(run.folder).heads[""]
    assert head.thresholds == (START,)
    final = FinalWeights(Loaded(run.folder, {}, {}), "validation/f1", 1.0, 1, 1, confusion=evaluate_run(run)[1])
    matrix = final.confusion[""]["matrix"]
    right = sum(row[index] for index, row in enumerate(matrix))
    assert final.describe().endswith(f" ({right} of {sum(map(sum, matrix))} right)")
    final_model.record_thresholds(run, final)
    assert f'"{head.classes[1]}" from {START} (f1 ' in capsys.readouterr().out
    outputs = collect_outputs(run)[""]
    shares = predictions.compute_probabilities(head, outputs)
    assert torch.equal(predict_classes(head, outputs), (shares[:, 1] > START).long())
    assert not torch.equal(predict_classes(head, outputs), outputs.argmax(1))
    answers = list(predictions._list_answers(head, outputs, False))
    expected = [head.classes[int(share > START)] for share in shares[:, 1]]
    assert [answer["prediction"] for answer in answers] == expected
    recorded_inputs.record_inputs(run, print, resumes=False)
    capsys.readouterr()
    assert evaluate(EvaluateRequest(run.folder, as_json=True)) == 0
    metrics = json.loads(capsys.readouterr().out)["metrics"]
    assert metrics["validation/f1_at_half"] == pytest.approx(run.last_metrics["validation/f1"])
    assert metrics["validation/f1"] != metrics["validation/f1_at_half"]


def test_nothing_is_measured_for_a_metric_that_thresholds_do_not_change() -> None:
    """200 labels of 20,000 samples took more than a second in every evaluation."""
    assert calibration.measure_gains(draw_rows(0.0, 50), calibration.CLASS_METRICS, "accuracy") == {}
