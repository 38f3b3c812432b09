"""What `evaluate` prints."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from drivetrain.errors import DataError
from drivetrain.inference import evaluate
from drivetrain.report.confusion import Confusion
from tests.messages import get_message, says, says_only
from tests.models.followed_weights import follow
from tests.task_cases import CALIBRATED, CASES, train_case


def evaluate_on(run: Path, data: Path) -> dict[str, float]:
    """The metrics on other data, as they are stored."""
    folder = run / f"evaluation-{data.stem}"
    assert evaluate.evaluate(evaluate.EvaluateRequest(run, data)) == 0
    metrics: dict[str, float] = json.loads((folder / "metrics.json").read_text())["metrics"]
    return metrics


@pytest.mark.parametrize("name", CASES)
def test_other_data_has_the_metrics_of_validation(tmp_path: Path, name: str) -> None:
    """It had no loss."""
    case = CASES[name]
    done = train_case(case, tmp_path)
    metrics = evaluate_on(done.folder, tmp_path / f"held{case.suffix}")
    expected = {
        key.removeprefix("validation/"): value
        for key, value in done.last_metrics.items()
        if not key.endswith(CALIBRATED)
    }
    metrics |= {key.removesuffix("_at_half"): value for key, value in metrics.items() if key.endswith("_at_half")}
    assert {key: metrics[key] for key in expected} == pytest.approx(expected, rel=1e-4)


def test_the_loss_on_other_data_has_no_class_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They are a property of the training data; the loss of the plain job is the same but for them."""
    case = CASES["table"]
    done = train_case(case, tmp_path)
    plain = evaluate_on(done.folder, tmp_path / "held.csv")["loss"]
    assert "class weights" not in capsys.readouterr().err
    spec = done.folder / "job.yaml"
    spec.write_text(spec.read_text().replace("class_weights: none", "class_weights: balanced"))
    assert evaluate_on(done.folder, tmp_path / "held.csv")["loss"] == plain
    assert says(capsys.readouterr().err, "evaluate-loss-computed-without")
    spec.write_text(spec.read_text().replace("loss: null", "loss: {name: focal, gamma: 2.0}"))
    assert 0 < evaluate_on(done.folder, tmp_path / "held.csv")["loss"] < plain


def test_a_copied_model_says_why_there_is_no_loss(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    case = CASES["table"]
    done = train_case(case, tmp_path)
    shutil.copytree(done.folder / "model", tmp_path / "copies" / "model")
    assert "loss" not in evaluate_on(tmp_path / "copies" / "model", tmp_path / "held.csv")
    assert says(capsys.readouterr().err, "loss-computed-since", "job.yaml")


def test_no_evaluation_replaces_one_of_other_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """That of the validation data was overwritten."""
    done = train_case(CASES["table"], tmp_path)
    other = tmp_path / "other"
    other.mkdir()
    for path in (tmp_path / "held.csv", tmp_path / "held.csv", other / "held.csv"):
        if not path.exists():
            shutil.copy(tmp_path / "held.csv", path)
        assert evaluate.evaluate(evaluate.EvaluateRequest(done.folder, path)) == 0
    assert evaluate.evaluate(evaluate.EvaluateRequest(done.folder)) == 0
    capsys.readouterr()
    stored = {
        folder.name: json.loads((folder / "metrics.json").read_text())["data"]
        for folder in sorted(done.folder.glob("evaluation*"))
    }
    assert stored == {
        "evaluation": get_message("validation-data-run"),
        "evaluation-held": str(tmp_path / "held.csv"),
        "evaluation-held-2": str(other / "held.csv"),
    }


def test_mistakes_are_counted_among_the_samples_of_their_class(capsys: pytest.CaptureFixture[str]) -> None:
    """For classes that are numbers it said `2.8% of 5`."""
    evaluate._show("data", {"accuracy": 0.9}, [Confusion("", ("5", "9"), ((35, 1), (2, 34)))])
    output = capsys.readouterr().out
    assert "5 predicted as 9: 1 of 36 (2.8%)" in output
    assert "9 predicted as 5: 2 of 36 (5.6%)" in output


def test_without_the_earlier_run_other_data_can_be_evaluated(tmp_path: Path) -> None:
    """The message meant the run itself: did you mean runs/two-001?"""
    case = CASES["table"]
    train_case(case, tmp_path)
    follow(tmp_path, case)
    second = tmp_path / "second"
    second.mkdir()
    shutil.copy(tmp_path / "next.yaml", second / "job.yaml")
    (second / "state.json").write_text(f'{{"status": "done", "source": "{tmp_path / "next.yaml"}"}}')
    assert evaluate.load_stored_job(second).name == "next"
    shutil.rmtree(tmp_path / "run")
    with pytest.raises(DataError, match=r"model\.from: .*run does not exist") as refused:
        evaluate.load_stored_job(second)
    assert says_only(refused.value.action, "restore-run-started-pass")
