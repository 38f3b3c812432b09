"""Optimizers, schedulers, metrics and callbacks of a program that are refused before its training, and ends of schedules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import lr_scheduler

import drivetrain
from drivetrain.errors import SpecError
from drivetrain.training.user_parts import UserOptimizer, UserSchedule, find_unstorable_state
from tests.axes import each_once
from tests.supervisor.circle_training import build_network, make_circle


class Counter:
    """A metric as those of torchmetrics."""

    higher_is_better: bool | None = None

    def reset(self) -> None: ...

    def update(self, outputs: Tensor, targets: Tensor) -> None: ...

    def compute(self) -> float:
        return 0.0


def other_parameters(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(build_network().parameters(), lr=0.1)


class ListOptimizer(torch.optim.SGD):
    """An optimizer with a list in its state."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["past"] = [0]


def sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


def plateau(optimizer: torch.optim.Optimizer) -> Any:
    return lr_scheduler.ReduceLROnPlateau(optimizer)


class Low(Counter):
    higher_is_better = False


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "another model": (
        {"optimizer": other_parameters},
        "optimizer: has 4 parameters that are not in the model, the first",
    ),
    "a closure": ({"optimizer": torch.optim.LBFGS}, "optimizer: is LBFGS, whose step() needs a closure"),
    "a list": (
        {"optimizer": ListOptimizer},
        "optimizer: is ListOptimizer, and 'past' of its state is of type list, which a checkpoin",
    ),
    "no optimizer": ({"optimizer": print}, "optimizer: returned None"),
    "a number": ({"optimizer": (1,)}, "optimizer: is a tuple of 1\n  possible: a description such as"),
    "a plateau": (
        {"optimizer": sgd, "schedule": plateau, "schedule_every": "epoch"},
        "schedule: is ReduceLROnPlateau, which depends on a metric",
    ),
    "no period": ({"optimizer": sgd, "schedule": plateau}, "schedule_every: is missing\n"),
    "no optimizer of its own": (
        {"schedule": plateau},
        "schedule: is plateau, and the optimizer is built by the runtime",
    ),
    "every alone": ({"schedule_every": "step"}, "schedule_every: is step\n"),
    "a scheduler by another name": ({"scheduler": None}, "scheduler: unknown key\n  possible: schedule="),
    "a callback": ({"on_step": 3}, "on_step: is an int\n  possible: a function of one argument"),
    "a class": ({"metrics": {"ones": Counter}}, "metrics: ones is the class Counter\n  possible: an object with reset"),
    "a known metric": ({"metrics": {"f1": Counter()}}, "metrics: has the name 'f1'"),
    "a direction": ({"metrics": {"hamming": Low()}}, "metrics: hamming is better when smaller"),
    "gpus twice": ({"gpus": "none", "limits": {"gpus": "none"}}, "gpus: is none, and limits has gpus, too"),
    "several gpus": ({"gpus": [0, 1], "optimizer": sgd}, "limits.gpus: is [0, 1] in a call from Python, which is one"),
    "fused": (
        {"optimizer": sgd, "optimize": {"fused_optimizer": True}},
        "optimize.fused_optimizer: is true, which is not possible here",
    ),
}


@pytest.mark.parametrize(("settings", "message"), WRONG.values(), ids=WRONG)
def test_a_mistake_and_its_message(settings: dict[str, Any], message: str, tmp_path: Path) -> None:
    defaults: dict[str, Any] = {"epochs": 2, "batch_size": 30, "optimize": {"cpu_threads": 1, "measure": "off"}}
    with pytest.raises(SpecError) as raised:
        drivetrain.train(build_network(), make_circle(120), make_circle(40), runs=tmp_path, **defaults | settings)
    assert message in str(raised.value)
    assert "  do:       " in str(raised.value)


def test_state_of_numbers_and_tensors_is_stored() -> None:
    """As that of torch's own optimizers: steps as tensors or numbers, momentum, and None."""
    for make_optimizer in (torch.optim.Adam, torch.optim.SGD, torch.optim.ASGD):
        model = build_network()
        assert find_unstorable_state(UserOptimizer(make_optimizer(model.parameters(), lr=0.1), model)) is None


def one_cycle(steps: int) -> Any:
    return lambda optimizer: lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=steps)


ENDING: dict[str, Any] = {
    "one cycle": one_cycle(7),
    "by epochs": lambda o: lr_scheduler.OneCycleLR(o, 0.1, epochs=1, steps_per_epoch=7),
    "in a sequence": lambda o: lr_scheduler.SequentialLR(o, [lr_scheduler.LinearLR(o), one_cycle(4)(o)], [3]),
    "in a chain": lambda o: lr_scheduler.ChainedScheduler([one_cycle(7)(o), lr_scheduler.StepLR(o, 1)]),
    "none": lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1, step_size_up=2, mode="triangular2"),
    "a cosine": lambda o: lr_scheduler.CosineAnnealingLR(o, 2),
}


@pytest.mark.parametrize(("kind", "as_object"), each_once([*ENDING, *ENDING], [False, True]))
def test_the_end_of_a_scheduler_is_found_without_a_step_of_its_own(kind: str, as_object: bool) -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(2))], lr=0.1, momentum=0.9)
    scheduling = ENDING[kind](optimizer) if as_object else ENDING[kind]
    before = dict(optimizer.param_groups[0])
    end = UserSchedule(scheduling, "step").find_end(optimizer, 20)
    assert (end and end[0]) == (None if kind in ("none", "a cosine") else 7)
    assert UserSchedule(scheduling, "step").find_end(optimizer, 7) is None
    assert optimizer.param_groups[0] == before


def test_looking_for_the_end_calls_no_function_and_changes_no_rate() -> None:
    rate, factors = torch.tensor(0.1), iter([1.0] * 3)
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(2))], lr=rate)
    assert UserSchedule(lambda o: lr_scheduler.StepLR(o, 1, 0.5), "step").find_end(optimizer, 5) is None
    assert rate == torch.tensor(0.1)
    counted = lr_scheduler.LambdaLR(optimizer, lambda epoch: next(factors))
    assert UserSchedule(counted, "step").find_end(optimizer, 9) is None
    assert list(factors) == [1.0, 1.0]  # torch itself took the first
