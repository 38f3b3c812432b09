"""Differential tests at the border to a program's own code: `drivetrain.train` against a loop written here.

Every case is trained by both: the batches and seeds of the loop are those that the library promises (order by seed and
epoch, draws of a sample by seed, epoch and sample), and the rest is plain torch.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import LRScheduler, StepLR

import drivetrain
from drivetrain.data import stateless_random
from drivetrain.errors import Stopped
from tests.axes import each_once

SAMPLES, BATCH, EPOCHS, SEED = 72, 16, 3, 4


class Noisy(torch.utils.data.Dataset[Any]):
    """Draws from NumPy's and torch's generators for each item."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        x = torch.from_numpy(np.random.default_rng(index).normal(size=8).astype(np.float32))
        return x + 0.3 * torch.randn(8) + float(np.random.rand()), int(x[0] > 0)


class Calm(Noisy):
    """Draws nothing from them."""

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        x = torch.from_numpy(np.random.default_rng(index).normal(size=8).astype(np.float32))
        return x, int(x[0] > 0)


def network(norm: Callable[[int], nn.Module] = nn.LayerNorm) -> nn.Sequential:
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(8, 16), norm(16), nn.ReLU(), nn.Linear(16, 2))


def build_frozen(norm: Callable[[int], nn.Module]) -> nn.Sequential:
    model = network(norm)
    model[0].requires_grad_(False)
    model[1].requires_grad_(False)
    return model


@dataclass
class Case:
    """What a program brings."""

    model: Callable[[], nn.Sequential] = network
    data: type[Noisy] = Calm
    scheduled: bool = False
    after: Callable[[int, nn.Module, Optimizer], None] = lambda step, model, optimizer: None
    """Called after each step, counted from 1."""
    rate: Callable[[], float | Tensor] = lambda: 0.2
    splits: bool = True
    """Whether micro-batches compute the same."""


def halve(step: int, model: nn.Module, optimizer: Optimizer) -> None:
    optimizer.param_groups[0]["lr"] = 0.2 * 0.9**step


def halve_in_place(step: int, model: nn.Module, optimizer: Optimizer) -> None:
    optimizer.param_groups[0]["lr"].fill_(0.2 * 0.9**step)


def shrink(step: int, model: Any, optimizer: Optimizer) -> None:
    with torch.no_grad():
        model[3].weight.mul_(0.99)


def freeze(step: int, model: Any, optimizer: Optimizer) -> None:
    model[0].requires_grad_(step < 3 or step > 9)


CASES = {
    "plain": Case(),
    "randomness": Case(data=Noisy),
    "scheduler": Case(scheduled=True),
    "rates by a callback": Case(after=halve),
    "a rate in a tensor": Case(rate=lambda: torch.tensor(0.2), scheduled=True),
    "a rate in a tensor by a callback": Case(rate=lambda: torch.tensor(0.2), after=halve_in_place),
    "weights by a callback": Case(after=shrink),
    "layers frozen by a callback": Case(after=freeze),
    "frozen": Case(model=lambda: build_frozen(nn.LayerNorm)),
    "frozen BatchNorm": Case(model=lambda: build_frozen(nn.BatchNorm1d), splits=False),
    "all": Case(model=lambda: build_frozen(nn.BatchNorm1d), data=Noisy, scheduled=True, after=shrink, splits=False),
}


@dataclass
class Objects:
    """One program's model, optimizer and scheduler."""

    case: Case
    model: nn.Sequential = field(init=False)
    optimizer: Optimizer = field(init=False)
    scheduler: LRScheduler | None = None

    def __post_init__(self) -> None:
        self.model = self.case.model()
        trained = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = SGD(trained, lr=self.case.rate(), momentum=0.9, foreach=False)
        if self.case.scheduled:
            self.scheduler = StepLR(self.optimizer, 4, 0.5)


def by_hand(case: Case) -> dict[str, Tensor]:
    """The weights after a plain loop over the same batches."""
    mine, step = Objects(case), 0
    data = case.data()
    for epoch in range(EPOCHS):
        mine.model.train()
        order = stateless_random.shuffle_samples(SEED, epoch, SAMPLES)
        for start in range(0, SAMPLES, BATCH):
            rows = []
            for index in order[start : start + BATCH].tolist():
                stateless_random.seed_globally(stateless_random.derive_key(SEED, "item", epoch, index, 0))
                rows.append(data[index])
            inputs, targets = torch.utils.data.default_collate(rows)
            mine.optimizer.zero_grad()
            nn.functional.cross_entropy(mine.model(inputs), targets).backward()
            mine.optimizer.step()
            if mine.scheduler:
                mine.scheduler.step()
            step += 1
            case.after(step, mine.model, mine.optimizer)
    return mine.model.state_dict()


def by_library(case: Case, folder: Path, micro_batch: int | str, stop: int) -> dict[str, Tensor]:
    """The weights after `drivetrain.train`, stopped by a signal at a step, if it is not 0, and resumed."""
    for at in (stop, 0) if stop else (0,):
        mine = Objects(case)

        def after(info: Any, mine: Objects = mine, at: int = at) -> None:
            case.after(info.step, mine.model, mine.optimizer)
            if info.step == at:
                os.kill(os.getpid(), signal.SIGTERM)

        try:
            drivetrain.train(
                mine.model,
                case.data(),
                Calm(),
                loss="cross-entropy",
                optimizer=mine.optimizer,
                schedule=mine.scheduler,
                schedule_every="step" if mine.scheduler else None,
                on_step=after,
                name="border",
                runs=folder,
                epochs=EPOCHS,
                batch_size=BATCH,
                seed=SEED,
                optimize={"measure": "off", "precision": "fp32", "micro_batch": micro_batch, "cpu_threads": 1},
                quiet=True,
            )
        except Stopped:
            assert at
    last = max((folder / "border-001" / "checkpoints").glob("step-*"), key=lambda path: int(path.name[5:]))
    tensors = safetensors.torch.load_file(last / "model.safetensors")
    # A checkpoint leaves out frozen weights.
    return {name: tensors[name] for name, value in mine.model.state_dict().items() if name in tensors}


@pytest.mark.parametrize(("name", "way"), each_once(CASES, [("off", 0), ("off", 7), (6, 7)]))
def test_the_library_trains_what_a_loop_trains(tmp_path: Path, name: str, way: tuple[int | str, int]) -> None:
    case, (micro_batch, stop) = CASES[name], way
    if micro_batch != "off" and not case.splits:
        pytest.skip("BatchNorm sees other batches, as the plan says")
    expected, ours = by_hand(case), by_library(case, tmp_path, micro_batch, stop)
    assert {"3.weight", "3.bias"} <= ours.keys()
    for key, value in ours.items():
        torch.testing.assert_close(value, expected[key], rtol=2e-5, atol=2e-6)
