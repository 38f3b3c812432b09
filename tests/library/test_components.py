"""Training from Python with an optimizer, a scheduler, metrics and callbacks of the program, and with `extend`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import lr_scheduler

import drivetrain
from drivetrain.errors import CheckpointError, SpecError, UserCodeError
from drivetrain.library import embedded_run
from tests.messages import ends_with, saying, says
from tests.supervisor.circle_training import build_network, have_same_bits, make_circle, no_report

__all__ = ["no_report"]
torch.set_num_threads(1)


def train(folder: Path, model: nn.Module | None = None, **settings: Any) -> embedded_run.Result:
    defaults: dict[str, Any] = {"epochs": 2, "batch_size": 30, "optimize": {"cpu_threads": 1, "measure": "off"}}
    return drivetrain.train(
        build_network() if model is None else model,
        make_circle(120),
        make_circle(40, seed=1),
        runs=folder,
        **defaults | settings,
    )


def rows(result: embedded_run.Result) -> list[dict[str, Any]]:
    lines = (result.folder / "metrics.jsonl").read_text().splitlines()
    return [row for line in lines if "train/loss" in (row := json.loads(line))]


def test_an_optimizer_object_keeps_its_groups_and_its_function_gives_the_same(tmp_path: Path) -> None:
    model = build_network()
    groups = [{"params": model[0].parameters(), "lr": 0.0}, {"params": model[3].parameters()}]
    optimizer = torch.optim.SGD(groups, lr=0.1, momentum=0.5)
    before = model[0].weight.clone()
    result = train(tmp_path / "object", model, optimizer=optimizer)
    assert torch.equal(model[0].weight, before)
    assert {row["lr"] for row in rows(result)} == {0.0}
    assert [group["lr"] for group in optimizer.param_groups] == [0.0, 0.1]
    spec_text = (result.folder / "job.yaml").read_text()
    assert "function: SGD" in spec_text
    assert "settings: momentum 0.5" in spec_text
    assert "schedule:\n    name: constant" in spec_text

    def make_optimizer(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD(
            [{"params": parameters[:2], "lr": 0.0}, {"params": parameters[2:]}],  # type: ignore[arg-type]
            lr=0.1,
            momentum=0.5,
        )

    assert have_same_bits(result, train(tmp_path / "function", optimizer=make_optimizer))


def test_an_optimizer_of_torch_gives_the_bits_of_a_loop_by_hand(tmp_path: Path) -> None:
    model, hand = build_network().eval(), build_network().eval()
    nets = [nn.Sequential(net[0], net[1], net[3]) for net in (model, hand)]
    order: list[Any] = []
    x, y = make_circle(120).tensors

    class Ordered(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return 120

        def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
            order.append(index)
            return x[index], y[index]

    optimizer = torch.optim.AdamW(nets[0].parameters(), lr=1e-2)
    loader = torch.utils.data.DataLoader(Ordered(), 32, shuffle=True)
    drivetrain.train(
        nets[0],
        loader,
        make_circle(40, seed=1),
        runs=tmp_path,
        epochs=1,
        names=["a", "b"],
        optimizer=optimizer,
        clip_norm=None,
        optimize={"cpu_threads": 1, "measure": "off"},
    )
    other = torch.optim.AdamW(nets[1].parameters(), lr=1e-2)
    epoch_order = order[-120:]
    for start in range(0, 120, 32):
        ids = epoch_order[start : start + 32]
        other.zero_grad()
        nn.functional.cross_entropy(nets[1](x[ids]), y[ids]).backward()
        other.step()
    for one, two in zip(nets[0].parameters(), nets[1].parameters(), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-6, atol=1e-7)


def test_a_scheduler_steps_when_it_is_told_to(tmp_path: Path) -> None:
    def train_scheduled(every: str, epochs: int) -> list[float]:
        result = train(
            tmp_path / every,
            optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
            schedule=lambda optimizer: lr_scheduler.StepLR(optimizer, 1, 0.5),
            schedule_every=every,
            epochs=epochs,
        )
        return [row["lr"] for row in rows(result)]

    assert train_scheduled("epoch", 2) == [0.1] * 4 + [0.05] * 4
    assert train_scheduled("step", 1) == [0.1, 0.05, 0.025, 0.0125]


class Counter:
    """A metric like those of torchmetrics: the share of points that are classified as 1."""

    higher_is_better: bool | None = None

    def __init__(self, fails: str = "") -> None:
        self.fails, self.ones, self.all, self.resets = fails, 0, 0, 0

    def reset(self) -> None:
        self.ones, self.all, self.resets = 0, 0, self.resets + 1

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        if self.fails == "update":
            raise ValueError("no such class")
        assert outputs.shape == (len(targets), 2)
        self.ones += int(outputs.argmax(dim=1).sum())
        self.all += len(targets)

    def compute(self) -> Tensor:
        return torch.zeros(2) if self.fails == "compute" else torch.tensor(self.ones / self.all)


def test_metrics_are_logged_reset_and_can_select_the_best(tmp_path: Path) -> None:
    torchmetrics = pytest.importorskip("torchmetrics.classification")
    theirs, ours = torchmetrics.MulticlassAccuracy(2, average="micro"), Counter()
    metrics = {"ones": ours, "theirs": theirs}
    result = train(tmp_path, metrics=metrics, checkpoint={"best": "validation/theirs"}, epochs=3, optimizer={"lr": 0.1})
    assert result.metric == "validation/theirs"
    assert result.best == pytest.approx(result.metrics["validation/accuracy"])
    assert result.best is not None
    assert ours.resets == 3
    assert ours.all == 40
    assert 0 <= result.metrics["validation/ones"] <= 1
    assert "function: MulticlassAccuracy" in (result.folder / "job.yaml").read_text()


class DirectedMetric(Counter):
    """A metric that says that larger values are better."""

    higher_is_better = True


DECIDING: dict[str, dict[str, Any]] = {
    "checkpoint.best": {"checkpoint": {"best": "validation/smape"}},
    "early_stopping.metric": {"early_stopping": {"metric": "validation/smape"}},
    "schedule.metric": {"schedule": {"name": "plateau", "metric": "validation/smape"}},
}


@pytest.mark.parametrize("key", DECIDING)
def test_a_metric_that_decides_says_which_values_are_better(tmp_path: Path, key: str) -> None:
    """The epoch with the largest error was the best one."""
    with pytest.raises(SpecError) as raised:
        train(tmp_path, metrics={"smape": Counter(), "other": Counter()}, **DECIDING[key])
    text = str(raised.value)
    assert says(text, "neither-name-nor-object", key, "validation/smape")
    assert says(text, "possible-names-end-error")
    assert ends_with(text, "call-error-or-score", "smape")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["mape-error", "mape-score", "mape_loss", "directed"])
def test_a_name_or_an_object_can_say_it(tmp_path: Path, name: str) -> None:
    metric = DirectedMetric() if name == "directed" else Counter()
    result = train(tmp_path, metrics={name: metric}, checkpoint={"best": f"validation/{name}"}, epochs=1)
    assert result.metric == f"validation/{name}"


def test_callbacks_are_told_what_happened_and_can_end_the_training(tmp_path: Path) -> None:
    steps, epochs, ends = [], [], []

    def on_epoch(info: drivetrain.TrainingInfo) -> None:
        epochs.append(info)
        if info.metrics["validation/loss"] < 10 and info.epoch == 2:
            raise drivetrain.StopTraining("good enough")

    result = train(tmp_path, epochs=5, on_step=steps.append, on_epoch=on_epoch, on_end=ends.append)
    assert result.stopped == "ended by on_epoch: good enough"
    assert [info.step for info in steps] == list(range(1, 9))
    assert [(info.epoch, info.step) for info in epochs] == [(1, 4), (2, 8)]
    assert [info.loss for info in steps] == [row["train/loss"] for row in rows(result)]
    assert [info.lr for info in steps] == [row["lr"] for row in rows(result)]
    assert (ends[0].reason, ends[0].metrics, ends[0].folder) == (result.stopped, result.metrics, result.folder)
    with pytest.raises(AttributeError):
        steps[0].loss = 0.0


def test_an_error_in_a_callback_ends_the_run_with_a_checkpoint(tmp_path: Path) -> None:
    def on_step(info: drivetrain.TrainingInfo) -> None:
        if info.step == 6 and not is_fixed:
            raise KeyError("my table")

    is_fixed = False
    with pytest.raises(UserCodeError) as raised:
        train(tmp_path / "a", on_step=on_step)
    text = str(raised.value)
    assert text.startswith("on_step raised KeyError: 'my table'\n    test_components.py:")
    assert f"possible: saved as {tmp_path}/a/library-001/checkpoints/step-6" in text
    assert ends_with(text, "fix-these-lines-same")
    is_fixed = True
    assert have_same_bits(train(tmp_path / "a", on_step=on_step), train(tmp_path / "b"))


def test_a_metric_that_raises_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserCodeError, check=saying("metrics-ones-update-raised")):
        train(tmp_path, metrics={"ones": Counter("update")})
    with pytest.raises(UserCodeError, check=saying("metrics-compute-gives-tensor", 2)):
        train(tmp_path, metrics={"two": Counter("compute")}, new=True)


def one_cycle(steps: int) -> Any:
    return lambda optimizer: lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=steps)


@pytest.mark.parametrize(
    ("every", "total", "length", "numbers"),
    [
        ("step", 6, {"epochs": 2}, ("6 steps", "8")),
        ("epoch", 2, {"epochs": 4}, ("2 epochs", "4")),
        ("step", 2, {"epochs": 4, "steps": 5}, ("2 steps", "5")),
    ],
)
def test_a_scheduler_that_ends_early_is_refused_and_one_that_fits_trains(
    every: str, total: int, length: dict[str, int], numbers: tuple[str, str], tmp_path: Path
) -> None:
    def sgd_with_momentum(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)

    settings: dict[str, Any] = {"optimizer": sgd_with_momentum, "schedule_every": every, **length}
    with pytest.raises(SpecError, check=saying("schedule-ends-early", *numbers)) as raised:
        train(tmp_path, schedule=one_cycle(total), **settings)
    assert f"total_steps={numbers[1]}" in str(raised.value)
    assert not list(tmp_path.glob("library-*"))
    assert train(tmp_path, schedule=one_cycle(int(numbers[1])), **settings).folder.name == "library-001"


def test_a_function_of_rates_for_fewer_steps_is_named_and_the_steps_so_far_are_saved(tmp_path: Path) -> None:
    """Its calls may count, so it is not tried before the training."""
    rates = [1.0, 0.5, 0.2]

    def schedule(optimizer: torch.optim.Optimizer) -> lr_scheduler.LRScheduler:
        return lr_scheduler.LambdaLR(optimizer, lambda step: rates[step])

    def sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.1)

    with pytest.raises(UserCodeError, check=saying("schedule-raised-index")) as raised:
        train(tmp_path, optimizer=sgd, schedule=schedule, schedule_every="step", epochs=2)
    assert "rates[step]" in str(raised.value)
    assert "library-001/checkpoints/step-3" in str(raised.value)


def test_a_finished_run_is_extended(tmp_path: Path) -> None:
    def make_optimizer(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters, lr=1e-2)

    uninterrupted = train(tmp_path / "whole", optimizer=make_optimizer, epochs=3)
    first_result = train(tmp_path / "parts", optimizer=make_optimizer, epochs=2)
    extended_result = train(tmp_path / "parts", optimizer=make_optimizer, epochs=3, extend=first_result)
    assert extended_result.folder.name == "library-002"
    assert have_same_bits(uninterrupted, extended_result)
    with pytest.raises(CheckpointError, check=saying("no-finished-run-with-checkpoint", tmp_path, "not recorded")):
        train(tmp_path / "parts", extend=tmp_path)


def test_gpus_monitor_and_the_words_of_a_result(tmp_path: Path) -> None:
    result = train(tmp_path, epochs=1, gpus="none", monitor={"every": "0.2s"})
    spec_text = (result.folder / "job.yaml").read_text()
    assert "gpus: none" in spec_text
    assert "every: 0.2s" in spec_text
    assert "Linear" not in repr(result)
    (result.folder / "report.html").write_text("<p>the report</p>")
    assert 'srcdoc="&lt;p&gt;the report' in result._repr_html_()
