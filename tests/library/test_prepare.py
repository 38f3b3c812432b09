"""`drivetrain.prepare`: the step in a loop by hand gives the weights of plain PyTorch, and those of `drivetrain.train`."""

from __future__ import annotations

import copy
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import drivetrain
from drivetrain.errors import DataError, DrivetrainError, NumericsError, SpecError
from drivetrain.hardware import detect
from drivetrain.optimizations import precision
from tests.messages import saying, says
from tests.supervisor.circle_training import build_network, make_circle, no_report

__all__ = ["no_report"]
torch.set_num_threads(1)
X, Y = make_circle(96).tensors
BATCHES = [(X[i : i + 32], Y[i : i + 32]) for i in (0, 32, 64)] * 2


def optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-2)


def by_hand(model: nn.Module, clip: float | None = None, accumulate: int = 1) -> nn.Module:
    """Plain PyTorch, with dropout from the global generator."""
    torch_optimizer = optimizer(model.train())
    torch.manual_seed(7)
    for number, (x, y) in enumerate(BATCHES, 1):
        (cross_entropy(model(x), y) / accumulate).backward()
        if number % accumulate == 0:
            if clip:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            torch_optimizer.step()
            torch_optimizer.zero_grad()
    return model


def train_prepared(model: nn.Module, **settings: Any) -> tuple[nn.Module, list[float]]:
    arguments: dict[str, Any] = {
        "loss": nn.CrossEntropyLoss(),
        "optimize": {"cpu_threads": 1},
        "quiet": True,
    } | settings
    torch_optimizer = optimizer(model.train())
    torch.manual_seed(7)
    with drivetrain.prepare(model, torch_optimizer, **arguments) as step:
        return model, [step(batch) for batch in BATCHES]


def have_same_weights(one: nn.Module, two: nn.Module) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))


@pytest.mark.parametrize(("clip", "accumulate"), [(None, 1), (0.1, 1), (None, 3), (0.1, 2)])
def test_the_bits_are_those_of_a_loop_by_hand(clip: float | None, accumulate: int) -> None:
    trained_model, losses = train_prepared(build_network(), clip_norm=clip, accumulate=accumulate)
    assert have_same_weights(trained_model, by_hand(build_network(), clip, accumulate))
    assert losses[0] == pytest.approx(float(cross_entropy(_first(build_network()), BATCHES[0][1])), rel=1e-6)


def _first(model: nn.Module) -> Tensor:
    torch.manual_seed(7)
    outputs: Tensor = model.train()(BATCHES[0][0])
    return outputs.detach()


def test_micro_batches_change_the_rounding_alone() -> None:
    def plain() -> nn.Module:
        layers = build_network()
        return nn.Sequential(layers[0], layers[1], layers[3])

    full_batch, losses = train_prepared(plain())
    micro_batches, micro_batch_losses = train_prepared(plain(), optimize={"cpu_threads": 1, "micro_batch": 12})
    assert losses == pytest.approx(micro_batch_losses, rel=1e-5)
    for one, two in zip(full_batch.parameters(), micro_batches.parameters(), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-6)


def test_it_gives_the_weights_of_train_for_the_same_batches(tmp_path: Path) -> None:
    def plain() -> nn.Module:
        layers = build_network()
        return nn.Sequential(layers[0], layers[1], layers[3])

    model = plain()
    losses: list[float] = []
    last_weights: dict[str, Tensor] = {}
    drivetrain.train(
        model,
        DataLoader(TensorDataset(X, Y), 32),
        make_circle(40, seed=1),
        runs=tmp_path,
        epochs=2,
        loss=nn.CrossEntropyLoss(),
        optimizer=optimizer(model),
        clip_norm=0.5,
        checkpoint={"best": "validation/loss"},
        optimize={"cpu_threads": 1, "measure": "off"},
        on_step=lambda info: losses.append(info.loss),
        on_epoch=lambda info: last_weights.update(copy.deepcopy(model.state_dict())),
    )
    prepared_model, prepared_losses = train_prepared(plain(), clip_norm=0.5)
    assert losses == pytest.approx(prepared_losses, rel=1e-6)
    for name, value in prepared_model.state_dict().items():
        torch.testing.assert_close(value, last_weights[name], rtol=1e-5, atol=1e-7)


class Own(nn.Module):
    """A model whose forward returns the loss, in one of the usual forms."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.inner, self.form = build_network(), form

    def forward(self, x: Tensor, y: Tensor) -> Any:
        loss = cross_entropy(self.inner(x), y)
        return loss if self.form == "tensor" else {"loss": loss}


@pytest.mark.parametrize("form", ["tensor", "mapping"])
@pytest.mark.parametrize("batch", ["tuple", "keys"])
def test_a_model_that_returns_its_loss(form: str, batch: str) -> None:
    model = Own(form).train()
    torch.manual_seed(7)
    with drivetrain.prepare(model, optimizer(model), optimize={"cpu_threads": 1}, quiet=True) as step:
        for x, y in BATCHES:
            step((x, y) if batch == "tuple" else {"x": x, "y": y})
    assert have_same_weights(model.inner, by_hand(build_network()))


def test_a_loss_of_a_mapping() -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = build_network()

        def forward(self, x: Tensor, y: Tensor) -> Mapping[str, Tensor]:
            return {"logits": self.inner(x)}

    model = Named().train()
    torch.manual_seed(7)
    torch_optimizer = optimizer(model)
    with drivetrain.prepare(
        model,
        torch_optimizer,
        loss=lambda outputs, batch: cross_entropy(outputs["logits"], batch["y"]),
        optimize={"cpu_threads": 1},
        quiet=True,
    ) as step:
        for x, y in BATCHES:
            step({"x": x, "y": y})
    assert have_same_weights(model.inner, by_hand(build_network()))


def test_a_bad_update_is_skipped_and_three_end_the_loop() -> None:
    model = build_network()
    bad = (torch.full((32, 2), float("nan")), Y[:32])
    with drivetrain.prepare(model, optimizer(model), loss=cross_entropy, quiet=True) as step:
        before = copy.deepcopy(model.state_dict())
        step(bad)
        assert step.skipped == 1
        assert step.last is not None
        assert not step.last.finite
        assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
        step(BATCHES[0])
        step(bad)
        step(bad)
        with pytest.raises(NumericsError, check=saying("three-updates-row-loss")):
            step(bad)
        assert (step.updates, step.skipped) == (1, 4)


def test_memory_that_runs_out_halves_the_micro_batch_and_keeps_the_random_numbers() -> None:
    class Short(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = build_network()

        def forward(self, x: Tensor) -> Tensor:
            if len(x) > 16:
                raise torch.OutOfMemoryError("CUDA out of memory")
            outputs: Tensor = self.inner(x)
            return outputs

    model = Short().train()
    with drivetrain.prepare(model, optimizer(model), loss=cross_entropy, quiet=True) as step:
        torch.manual_seed(7)
        loss = step(BATCHES[0])
        assert step.micro_batch == 16
    fresh = build_network().train()
    torch.manual_seed(7)
    halves = [cross_entropy(fresh(x), y) for x, y in zip(X[:32].split(16), Y[:32].split(16), strict=True)]
    assert loss == pytest.approx(float(torch.stack(halves).sum().detach()) / 2, rel=1e-6)


def test_a_second_try_of_a_batch_draws_from_numpy_and_python_what_the_first_drew() -> None:
    draws: list[tuple[float, float]] = []

    class Drawing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = build_network()

        def forward(self, x: Tensor) -> Tensor:
            draws.append((float(np.random.rand()), random.random()))
            if len(x) > 16:
                raise torch.OutOfMemoryError("CUDA out of memory")
            outputs: Tensor = self.inner(x)
            return outputs

    model = Drawing().train()
    with drivetrain.prepare(model, optimizer(model), loss=cross_entropy, quiet=True) as step:
        draws.clear()
        step(BATCHES[0])
    assert len(draws) == 3
    assert draws[1] == draws[0]
    assert draws[2] != draws[0]


def test_bf16_is_the_autocast_of_a_loop_by_hand(tmp_path: Path) -> None:
    if "bf16" not in precision.formats(detect.detect(tmp_path)):
        pytest.skip("this CPU has no bf16 instructions")
    prepared_model, losses = train_prepared(build_network(), optimize={"cpu_threads": 1, "precision": "bf16"})
    model = build_network().train()
    torch_optimizer = optimizer(model)
    torch.manual_seed(7)
    for (x, y), loss in zip(BATCHES, losses, strict=True):
        with torch.autocast("cpu", torch.bfloat16):
            outputs = model(x)
        expected_loss = cross_entropy(outputs.float(), y)
        assert loss == pytest.approx(float(expected_loss.detach()), rel=1e-4)
        expected_loss.backward()
        torch_optimizer.step()
        torch_optimizer.zero_grad()
    for one, two in zip(prepared_model.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-3, atol=1e-4)
    assert {value.dtype for value in prepared_model.parameters()} == {torch.float32}
    assert not have_same_weights(prepared_model, by_hand(build_network())), "fp32 gives other weights"


def test_plan_state_and_the_process_afterwards() -> None:
    threads = torch.get_num_threads()
    model = build_network()
    settings: dict[str, Any] = {"loss": cross_entropy, "quiet": True, "accumulate": 2}
    with drivetrain.prepare(model, optimizer(model), **settings) as step:
        assert step.plan.value("precision") == "fp32"
        assert says(step.plan.decision("loader_workers").reason, "your-loop-reads-data")
        step(BATCHES[0])
        with pytest.raises(DrivetrainError, check=saying("state-dict-called-after", 1, 2)):
            step.state_dict()
        assert step.flush() is not None
        assert step.flush() is None
        state = step.state_dict()
        step(BATCHES[1])
    assert torch.get_num_threads() == threads
    with pytest.raises(SpecError, check=saying("called-outside-block")):
        step(BATCHES[0])
    with drivetrain.prepare(model, optimizer(model), **settings) as other:
        other.load_state_dict(state)
        assert other.updates == 1
        assert other.state_dict() == state


WRONG: dict[str, tuple[dict[str, Any], Any, type[Exception], str]] = {
    "a dict without a loss": ({"loss": None}, {"input": X}, SpecError, "the model gives"),
    "texts": ({}, (["a", "b"], Y), DataError, "the batch holds a str\n  possible: (inputs, targets), where inputs"),
    "texts as targets": (
        {},
        (X, ["a"] * 96),
        DataError,
        "Values are tensors, numbers, None, objects with to(), or nest",
    ),
    "a bare tensor": ({}, X, DataError, "the batch is an array of shape (96, 2)"),
    "rows": ({}, (X, Y[:3]), SpecError, "loss raised ValueError: Expected input batch_size (96)"),
    "rows to split": (
        {"optimize": {"micro_batch": 8}},
        (X, Y[:3]),
        SpecError,
        "the tensors of the batch have 96, 3 rows",
    ),
    "a loss without a gradient": ({"loss": lambda o, y: o.detach().mean()}, (X, Y), SpecError, "without a gradient"),
    "a loss that raises": ({"loss": lambda o, y: o[7, 7, 7]}, (X, Y), SpecError, "loss raised IndexError"),
    "workers": ({"optimize": {"loader_workers": 2}}, (X, Y), SpecError, "optimize.loader_workers: is set"),
    "an unknown optimization": ({"optimize": {"speed": 2}}, (X, Y), SpecError, "optimize.speed: unknown key"),
    "no batches": ({"accumulate": 0}, (X, Y), SpecError, "accumulate: is 0"),
    "several gpus": ({"gpus": [0, 1]}, (X, Y), SpecError, "limits.gpus: is [0, 1] in a call from Python"),
}


@pytest.mark.parametrize(("settings", "batch", "kind", "message"), WRONG.values(), ids=WRONG)
def test_a_mistake_and_its_message(settings: dict[str, Any], batch: Any, kind: type[Exception], message: str) -> None:
    model = build_network() if not isinstance(batch, dict) else nn.Linear(2, 2)
    arguments: dict[str, Any] = {"loss": cross_entropy, "quiet": True} | settings
    with pytest.raises(kind) as raised, drivetrain.prepare(model, optimizer(model), **arguments) as step:
        step(batch)
    assert message in str(raised.value)
