"""A network for tables that begins with a linear model: solved first, continued by steps, and saved with it."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from drivetrain.cli import main
from drivetrain.errors import SpecError
from drivetrain.job_spec import load_job
from drivetrain.job_spec.yaml_file import parse
from drivetrain.models.networks import cnn_lstm
from drivetrain.models.networks.mlp import Mlp
from drivetrain.models.networks.tabm import TabM
from drivetrain.training import train
from drivetrain.training.run import Run
from tests import tiny
from tests.messages import saying

torch.set_num_threads(1)
SPEC = """name: small
task: {task}
data: {{train: a.csv, validation: 0.25, target: {target}, ignore: [{ignored}]}}
model: {{name: {name}, hidden: [16], skip: true}}
train: {{epochs: {epochs}, batch_size: 32, optimizer: {{name: adamw, lr: 3e-3}}}}
optimize: {{cpu_threads: 1}}
baselines: 'off'
"""


def write(folder: Path, name: str = "mlp", *, task: str = "classification", epochs: int = 3) -> Path:
    """A table of few rows whose class and amount are linear in numbers and a category."""
    folder.mkdir(exist_ok=True)
    draw = np.random.default_rng(0)
    with (folder / "a.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["x", "y", "color", "kind", "amount"])
        for _ in range(200):
            x, y, color = draw.normal(), draw.normal(), draw.choice(["red", "blue"])
            amount = x - y + (color == "red") + 0.1 * draw.normal()
            table.writerow([f"{x:.4f}", f"{y:.4f}", color, "high" if amount > 0.5 else "low", f"{amount:.4f}"])
    target, ignored = ("kind", "amount") if task == "classification" else ("amount", "kind")
    path = folder / "job.yaml"
    path.write_text(
        SPEC.format(task=f"tabular-{task}", target=target, ignored=ignored, name=name, epochs=epochs), encoding="utf-8"
    )
    return path


def fit(path: Path) -> Run:
    run = tiny.assemble_plain_run(load_job.load(path), path.parent)
    train.train(run)
    return run


def read_rows(folder: Path, key: str) -> list[dict[str, float]]:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [row for row in rows if key in row]


@pytest.mark.parametrize("name", ["mlp", "tabm"])
@pytest.mark.parametrize(("task", "metric"), [("classification", "accuracy"), ("regression", "r2")])
def test_the_first_epoch_solves_the_linear_model_alone(tmp_path: Path, name: str, task: str, metric: str) -> None:
    run = fit(write(tmp_path, name, task=task, epochs=1))
    assert run.counters.solved
    assert run.last_metrics[f"validation/{metric}"] > 0.9
    assert not any(p.any() for n, p in run.model.named_parameters() if n == "classifier.weight")
    assert all(p.any() for n, p in run.model.named_parameters() if n == "skip.weight")


def test_the_next_epochs_continue_it(tmp_path: Path) -> None:
    run = fit(write(tmp_path, "tabm"))
    assert [row["epoch"] for row in read_rows(tmp_path, "validation/loss")] == [0, 1, 2]
    assert all(p.requires_grad and p.any() for n, p in run.model.named_parameters() if "weight" in n)
    solved, *_, last = read_rows(tmp_path, "validation/loss")
    assert last["validation/loss"] < 2 * solved["validation/loss"], "it does not begin anew"


@pytest.mark.parametrize(("numbers", "categories"), [(3, []), (0, [4, 2]), (2, [3])])
@pytest.mark.parametrize("is_ensemble", [False, True])
def test_its_outputs_are_added(numbers: int, categories: list[int], is_ensemble: bool) -> None:
    network: Mlp | TabM
    if is_ensemble:
        network = TabM(numbers, categories, 2, "numbers", members=3, hidden=[4], embedding=2, dropout=0.0, skip=True)
    else:
        network = Mlp(numbers, categories, 2, hidden=[4], embedding=2, dropout=0.0, skip=True)
    inputs = [torch.randn(5, numbers)] if numbers else []
    inputs += [torch.ones(5, len(categories), dtype=torch.int32)] if categories else []
    assert not network.eval()(*inputs).any()
    assert network.skip is not None
    nn.init.ones_(network.skip.weight)
    sums = (inputs[0].sum(1) if numbers else torch.zeros(5)) + len(categories)
    torch.testing.assert_close(network(*inputs), sums[:, None].expand(-1, 2))


@pytest.mark.slow
def test_it_predicts_exports_and_starts_other_runs(tmp_path: Path) -> None:
    path = write(tmp_path, "tabm")
    runs = ["--runs", str(tmp_path / "runs")]
    assert main.main(["train", str(path), *runs]) == 0
    run = tmp_path / "runs" / "small-001"
    assert main.main(["evaluate", str(run), "--data", str(tmp_path / "a.csv")]) == 0
    assert main.main(["export", str(run), "--output", str(tmp_path / "model.onnx")]) == 0
    other = tmp_path / "other.yaml"
    other.write_text(path.read_text().replace("{name: tabm, hidden: [16], skip: true}", f"{{from: {run}}}"))
    assert main.main(["train", str(other), *runs, "--new"]) == 0


def test_steps_below_an_epoch_are_not_exceeded(tmp_path: Path) -> None:
    """The solved epoch has five steps, and the run said that it trained all of them."""
    path = write(tmp_path)
    path.write_text(path.read_text().replace("epochs: 3", "epochs: 3, steps: 2"))
    assert fit(path).counters.step == 2


@pytest.mark.parametrize("setting", ["weights: w.safetensors", "freeze: {body: true}", "unfreeze: []"])
def test_what_is_added_to_the_linear_model_is_refused_beside_it(setting: str) -> None:
    """A loaded classifier was added to the solved model: r2 fell from 0.997 to 0.03 without a word."""
    text = f"name: a\ntask: tabular-regression\ndata: {{train: a.csv, target: y}}\nmodel: {{skip: true, {setting}}}\n"
    with pytest.raises(SpecError, check=saying("skip-is-true-together", setting.partition(":")[0])):
        load_job.check(parse(text, "a.yaml"))


def test_statistics_of_windows_are_computed_where_the_windows_are() -> None:
    """`linspace` without a device computed on the CPU, so the network failed on a GPU."""
    assert cnn_lstm.compute_statistics(torch.empty(2, 20, 3, device="meta")).device.type == "meta"
