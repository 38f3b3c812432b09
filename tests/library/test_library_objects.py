"""What `drivetrain.train` does to objects of a program: what a loop of its own would do, said where it differs."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import drivetrain
from tests.messages import get_message, omits, says

PLAIN: dict[str, Any] = {"measure": "off", "precision": "fp32"}


def samples(count: int = 96) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(count, 8, generator=torch.Generator().manual_seed(0)) * 3 + 5
    return x, (x[:, 0] > 5).long()


def network() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU()), nn.Linear(16, 2))


def train(model: nn.Module, folder: Path, **overrides: Any) -> Any:
    settings: dict[str, Any] = {"epochs": 2, "batch_size": 32, "new": True, "optimize": PLAIN, "schedule": "constant"}
    if not isinstance(overrides.get("optimizer"), torch.optim.Optimizer):
        settings["optimizer"] = {"name": "sgd", "lr": 0.1}
    return drivetrain.train(model, samples(), samples(), name="objects", runs=folder, **settings | overrides)


def test_frozen_layers_train_as_in_a_loop_of_ones_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They were put into evaluation mode: 0.877 in place of 0.965."""
    model = network()
    model[0].requires_grad_(False)
    train(model, tmp_path)
    assert int(model[0][1].num_batches_tracked) > 0
    line = "frozen, but still in training mode: 0.1 normalizes by each batch"
    assert f"\nmodel: {line}" in capsys.readouterr().out
    assert line in (tmp_path / "objects-001" / "events.jsonl").read_text()


def test_a_layer_in_evaluation_mode_stays_in_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = network()
    model[0][1].eval()
    train(model, tmp_path)
    assert int(model[0][1].num_batches_tracked) == 0
    assert torch.equal(model[0][1].running_mean, torch.zeros(16))
    assert says(capsys.readouterr().out, "model-evaluation-mode-program", "0.1")


def test_a_network_that_is_all_in_evaluation_mode_is_trained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Right after loading weights most are."""
    model = network().eval()
    train(model, tmp_path, quiet=True)
    assert omits(capsys.readouterr().out, "evaluation-mode-trained-training")
    assert says((tmp_path / "objects-001" / "events.jsonl").read_text(), "evaluation-mode-trained-training")
    assert int(model[0][1].num_batches_tracked) > 0


@pytest.mark.parametrize(("settings", "clips"), [({}, False), ({"clip_norm": 0.01}, True)])
def test_gradients_of_an_optimizer_of_ones_own_are_clipped_on_request(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], settings: dict[str, float], clips: bool
) -> None:
    ours, theirs = network(), network()
    optimizer = torch.optim.SGD(ours.parameters(), lr=0.5)
    train(ours, tmp_path, optimizer=optimizer, epochs=1, batch_size=96, **settings)
    loop = torch.optim.SGD(theirs.parameters(), lr=0.5)
    x, y = samples()
    nn.functional.cross_entropy(theirs(x), y).backward()
    loop.step()
    same = torch.allclose(ours[1].weight, theirs[1].weight, atol=1e-6)  # type: ignore[arg-type]
    assert same is not clips
    assert (omits if clips else says)(capsys.readouterr().out, "your-own-gradients-clipped")


@pytest.mark.parametrize("schedule", ["constant", None, "cosine"])
def test_rates_that_a_callback_sets_hold_unless_a_schedule_sets_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], schedule: str | None
) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rates: list[float] = []

    def after(info: Any) -> None:
        rates.append(info.lr)
        optimizer.param_groups[0]["lr"] = 0.1 * 0.5**info.step

    train(model, tmp_path, optimizer=optimizer, schedule=schedule, on_step=after)
    output = capsys.readouterr().out
    if schedule == "cosine":
        assert output.count(get_message("those-step-sets-lost")) == 1
    else:
        assert rates == pytest.approx([0.1 * 0.5**step for step in range(6)])
        assert "are lost" not in output


@pytest.mark.parametrize(
    ("around", "is_said"),
    [
        (lambda: torch.autocast("cpu", dtype=torch.bfloat16), True),
        (torch.no_grad, False),
        (torch.inference_mode, False),
        (contextlib.nullcontext, False),
    ],
    ids=["autocast", "no_grad", "inference_mode", "nothing"],
)
def test_what_is_around_the_call_does_not_change_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], around: Any, is_said: bool
) -> None:
    kinds = set()

    class Noted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = network()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self.layers(x)
            kinds.add(result.dtype)
            return result

    model = Noted()
    with around():
        done = train(model, tmp_path)
    assert kinds == {torch.float32}
    assert done.metrics == train(Noted(), tmp_path).metrics
    assert (says if is_said else omits)(capsys.readouterr().out, "autocast-around-call-hold")


def stop(info: Any) -> None:
    os.kill(os.getpid(), signal.SIGINT)


def fail(info: Any) -> None:
    raise KeyError("mine")


ENDS: dict[str, tuple[dict[str, Any], type[BaseException] | None]] = {
    "done": ({}, None),
    "stopped": ({"on_step": stop}, drivetrain.Stopped),
    "a callback fails": ({"on_epoch": fail}, drivetrain.UserCodeError),
    "the data does not fit": ({"targets": "labels"}, drivetrain.SpecError),
    "the loss does not fit": ({"loss": lambda outputs, targets: outputs[9, 9, 9]}, drivetrain.SpecError),
}


@pytest.mark.parametrize(("settings", "error"), ENDS.values(), ids=ENDS)
@pytest.mark.parametrize("training", [True, False])
def test_each_layer_has_its_mode_from_before(
    tmp_path: Path, settings: dict[str, Any], error: type[BaseException] | None, training: bool
) -> None:
    """All were in evaluation mode, and a loop of one's own that followed trained without dropout."""
    model = network().train(training)
    model[0][1].train(not training)
    before = [layer.training for layer in model.modules()]
    with pytest.raises(error) if error else contextlib.nullcontext():
        train(model, tmp_path, quiet=True, **settings)
    assert [layer.training for layer in model.modules()] == before


@pytest.mark.parametrize("mode", ["training", "one layer", "evaluation"])
def test_a_loop_of_ones_own_is_told_about_evaluation_mode(mode: str, capsys: pytest.CaptureFixture[str]) -> None:
    model = network().train(mode == "training")
    model[0][1].train(mode != "evaluation")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with drivetrain.prepare(model, optimizer, loss=nn.functional.cross_entropy, quiet=True) as step:
        for _ in range(2):
            step(samples(32))
    output = capsys.readouterr().out
    assert output.count(get_message("evaluation-mode-first-step")) == (mode == "evaluation")
