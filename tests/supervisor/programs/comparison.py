"""Programs of other shapes: `drivetrain.prepare` and `drivetrain.train` give the weights of a loop by hand, or a way out.

Each program is written once as a loop by hand and once with the library. What is refused names another way, which is run, too.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader

import drivetrain
from tests.supervisor.circle_training import no_report

__all__ = ["no_report"]

torch.set_num_threads(1)
TOLERANCE = 1e-6
OFF: dict[str, Any] = {"cpu_threads": 1, "precision": "fp32"}


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def draw_whole(high: int, *shape: int, seed: int = 0) -> Tensor:
    return torch.randint(high, shape, generator=torch.Generator().manual_seed(seed))


X = draw(96, 8)
W = draw(8, 3, seed=1)
Y, NUMBERS = (X @ W).argmax(1), (X @ W)[:, 0]


def mlp(outputs: int = 3, dropout: float = 0.0) -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(dropout), nn.Linear(16, outputs))


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


def cut(*tensors: Tensor) -> list[tuple[Tensor, ...]]:
    """Batches of 16 rows of all tensors."""
    return list(zip(*(tensor.split(16) for tensor in tensors), strict=True))


def differ(one: nn.Module, two: nn.Module) -> float:
    """The largest difference of two networks in parameters and buffers."""
    pairs = zip(one.state_dict().values(), two.state_dict().values(), strict=True)
    return max(float((a.double() - b.double()).abs().max()) for a, b in pairs if a.numel())


@dataclass
class Loop:
    """A program with a loop of its own."""

    build: Callable[[], nn.Module]
    batches: Sequence[Any]
    """What its loader yields."""
    by_hand: Callable[[nn.Module, Any], Tensor]
    """Computes the loss of a batch."""
    loss: Callable[..., Any] | None = None
    """The loss that `prepare` gets."""
    optimizer: Callable[[Any], torch.optim.Optimizer] = sgd
    settings: dict[str, Any] = field(default_factory=dict)


def build_with(change: Callable[[nn.Module], Any]) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        network = mlp()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            change(network[0])
        return network

    return build


def plain(model: nn.Module, batch: Any) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def from_pair(loss: Callable[[Any, Any], Tensor]) -> Callable[[nn.Module, Any], Tensor]:
    return lambda model, batch: loss(model(batch[0]), batch[1])


def plain_pair(loss: Callable[..., Any], build: Callable[[], nn.Module], batches: Any, **settings: Any) -> Loop:
    return Loop(build, batches, from_pair(loss), loss, settings=settings)


@dataclass
class Training:
    """A program that hands its loop to `drivetrain.train`."""

    build: Callable[[], nn.Module]
    data: Any
    loss: Any
    optimizer: Callable[[Any], torch.optim.Optimizer] = sgd
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass
class Refusal:
    """What is refused, with the words of its message and another way that works."""

    call: Callable[[Path], Any]
    words: tuple[str, ...]
    way_out: Callable[[Path], Any]


def train(folder: Path, model: nn.Module, data: Any = (X, Y), **settings: Any) -> drivetrain.Result:
    defaults: dict[str, Any] = {"epochs": 1, "batch_size": 32, "optimize": OFF | {"measure": "off"}, "quiet": True}
    return drivetrain.train(model, data, data, runs=folder, **defaults | settings)


def run_steps(
    model: nn.Module, batches: Sequence[Any], optimizer: Any = sgd, loss: Any = F.cross_entropy, optimize: Any = OFF
) -> None:
    with drivetrain.prepare(model, optimizer, loss=loss, optimize=optimize, quiet=True) as step:
        for batch in batches:
            step(batch)


def check_loop(program: Loop) -> None:
    """Train with `prepare` and by hand, and compare the weights."""

    def build() -> nn.Module:
        torch.manual_seed(1)
        return program.build()

    model, prepared = build(), build()
    optimizer, every = program.optimizer(model.parameters()), program.settings.get("accumulate", 1)
    torch.manual_seed(5)
    for number, batch in enumerate(copy.deepcopy(program.batches)):
        if number % every == 0:
            optimizer.zero_grad()
        (program.by_hand(model, batch) / every).backward()
        if number % every == every - 1:
            if "clip_norm" in program.settings:
                nn.utils.clip_grad_norm_(model.parameters(), program.settings["clip_norm"])
            optimizer.step()
    torch.manual_seed(5)
    settings: dict[str, Any] = {"optimize": OFF, "quiet": True} | program.settings
    with drivetrain.prepare(prepared, program.optimizer, loss=program.loss, **settings) as step:
        for batch in copy.deepcopy(program.batches):
            step(batch)
    assert differ(model, prepared) <= TOLERANCE
    assert differ(model, build()) > 1e-3, "nothing was trained"


def check_training(program: Training, folder: Path) -> None:
    """Train with `train` and by hand, and compare the last weights."""
    torch.manual_seed(1)
    model = program.build()
    trained = copy.deepcopy(model)
    loader = DataLoader(program.data, 32)
    optimizer = program.optimizer(model.parameters())
    for _ in range(2):
        for *inputs, target in loader:
            optimizer.zero_grad()
            flat = inputs[0] if isinstance(inputs[0], list) else inputs
            program.loss(
                model(*(value.float() if value.is_floating_point() else value for value in flat)), target
            ).backward()
            if "clip_norm" in program.settings:
                nn.utils.clip_grad_norm_(model.parameters(), program.settings["clip_norm"])
            optimizer.step()
    last = copy.deepcopy(trained)

    def keep(info: drivetrain.TrainingInfo) -> None:
        last.load_state_dict(trained.state_dict())

    settings: dict[str, Any] = {"loss": program.loss, "optimizer": program.optimizer(trained.parameters())}
    train(folder, trained, loader, epochs=2, on_epoch=keep, batch_size=32, **settings | program.settings)
    assert differ(model, last) <= TOLERANCE


def check_refusal(refusal: Refusal, folder: Path) -> None:
    """Check the message of what is refused, and run the other way."""
    with pytest.raises((drivetrain.SpecError, drivetrain.DataError, drivetrain.OutOfMemory)) as caught:
        refusal.call(folder)
    lines = str(caught.value)
    assert [words for words in refusal.words if words not in lines] == [], lines
    assert "\n  possible: " in lines
    assert "\n  do: " in lines
    refusal.way_out(folder)
