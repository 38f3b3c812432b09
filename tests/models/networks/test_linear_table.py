"""The linear model for tables: its inputs, that it is solved, and that it predicts, exports and is described like any other."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from drivetrain.cli import main
from drivetrain.errors import SpecError
from drivetrain.job_spec import load_job as job_spec
from drivetrain.models.networks import linear_table
from drivetrain.training import train
from tests import tiny
from tests.messages import saying, says, says_only

torch.set_num_threads(1)
SPEC = """name: small
task: {task}
data: {{train: a.csv, validation: 0.25, target: {target}, ignore: {ignored}}}
model: {model}
optimize: {{cpu_threads: 1}}
baselines: 'off'
"""


def write(folder: Path, *, task: str = "tabular-classification", target: str = "kind", model: str = "linear") -> Path:
    """A table whose classes depend on a number in a bend that no line follows, and on a category."""
    draw = np.random.default_rng(0)
    with (folder / "a.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["x", "y", "color", "kind", "amount"])
        for _ in range(400):
            x, y, color = draw.normal(), draw.normal(), draw.choice(["red", "blue", "green"])
            amount = abs(x) + (color == "red") + 0.05 * draw.normal()
            table.writerow([f"{x:.4f}", f"{y:.4f}", color, "high" if amount > 1 else "low", f"{amount:.4f}"])
    path = folder / "job.yaml"
    path.write_text(
        SPEC.format(task=task, target=target, model=model, ignored="amount" if target == "kind" else "kind")
    )
    return path


def test_categories_are_columns_and_numbers_are_shares_of_bins() -> None:
    network = linear_table.LinearTable(numbers=2, categories=[3, 2], outputs=4, edges=[[-1.0, 0.0, 2.0], []])
    classifier_inputs: list[torch.Tensor] = []
    network.classifier.register_forward_pre_hook(lambda module, inputs: classifier_inputs.append(inputs[0]))
    numbers = torch.tensor([[-5.0, 7.0], [1.0, -3.0], [9.0, 0.0]])
    assert network(numbers, torch.tensor([[0, 1], [2, 0], [1, 1]], dtype=torch.int32)).shape == (3, 4)
    assert classifier_inputs[0].tolist() == [
        [7, 0, 0, 1, 0, 0, 0, 1],
        [-3, 1, 0.5, 0, 0, 1, 1, 0],
        [0, 1, 1, 0, 1, 0, 0, 1],
    ]


@pytest.mark.parametrize(("numbers", "categories"), [(3, []), (0, [4, 2])])
def test_tables_of_one_kind(numbers: int, categories: list[int]) -> None:
    network = linear_table.LinearTable(numbers=numbers, categories=categories, outputs=5)
    inputs = [torch.randn(9, numbers)] if numbers else [torch.ones(9, len(categories), dtype=torch.int32)]
    assert network(*inputs).shape == (9, 5)


def test_it_is_solved_and_follows_a_bend(tmp_path: Path) -> None:
    run = tiny.assemble_plain_run(job_spec.load(write(tmp_path)), tmp_path)
    assert says_only(train.train(run), "heads-are-solved")
    assert run.last_metrics["validation/accuracy"] > 0.93
    straight = tmp_path / "straight"
    straight.mkdir()
    line = tiny.assemble_plain_run(job_spec.load(write(straight, model="{name: linear, bins: 0}")), straight)
    train.train(line)
    assert line.last_metrics["validation/accuracy"] < run.last_metrics["validation/accuracy"] - 0.1


def test_numbers_are_predicted_too(tmp_path: Path) -> None:
    run = tiny.assemble_plain_run(
        job_spec.load(write(tmp_path, task="tabular-regression", target="amount").rename(tmp_path / "b.yaml")), tmp_path
    )
    train.train(run)
    assert run.last_metrics["validation/r2"] > 0.9


@pytest.mark.slow
def test_it_trains_predicts_and_exports_like_any_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path)
    assert main.main(["train", "job.yaml", "-v"]) == 0
    assert main.main(["predict", "runs/small-001", "a.csv", "--output", "answers.csv"]) == 0
    with open("answers.csv", newline="", encoding="utf-8") as answers, open("a.csv", encoding="utf-8") as truth:
        pairs = zip(csv.DictReader(answers), csv.DictReader(truth), strict=True)
        assert np.mean([one["prediction"] == other["kind"] for one, other in pairs]) > 0.93
    assert main.main(["evaluate", "runs/small-001"]) == 0
    evaluated = json.loads(Path("runs/small-001/evaluation/metrics.json").read_text())["metrics"]
    calibrated = capfd.readouterr().out.split("validation log loss ")[1].split(" -> ")[1].split(",")[0]
    # The probabilities that `predict` writes, not those before the temperature.
    assert evaluated["validation/log_loss"] == pytest.approx(float(calibrated), abs=2e-3)
    assert main.main(["train", "job.yaml", "--extend", "runs/small-001", "--set", "train.epochs=20"]) == 0
    weights = [Path(f"runs/small-{number}/model/model.safetensors").read_bytes() for number in ("001", "002")]
    assert weights[0] == weights[1]
    assert main.main(["export", "runs/small-001"]) == 0
    assert says(capfd.readouterr().out, "er-from-network-by")


def test_what_it_does_not_have_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, check=saying("has-no-effect-on-network", "model.hidden", "model.name: linear")):
        job_spec.load(write(tmp_path, model="{name: linear, hidden: [8]}"))
