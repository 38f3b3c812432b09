"""A training from Python goes on only with the objects that it was started with, down to their code."""

from __future__ import annotations

import copy
import functools
import os
import signal
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import lr_scheduler
from torch.utils.data import Dataset, Subset

import drivetrain
from drivetrain.errors import CheckpointError, Stopped, UserCodeError
from drivetrain.library import object_record
from drivetrain.system.files import write_json
from drivetrain.training.user_parts import Callbacks, UserMetrics, UserOptimizer, UserParts, UserSchedule
from tests.messages import get_message, saying, says, says_each

torch.set_num_threads(1)
X = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
Y = (X.sum(1) > 0).long()


def net(act: nn.Module | None = None) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), act or nn.LeakyReLU(0.1), nn.Dropout(0.1), nn.Linear(8, 2))


def apply_change(module: nn.Module, change: Callable[[Any], object]) -> nn.Module:
    change(module)
    return module


def block(factor: float, extra: int = 0) -> nn.Module:
    """A network whose class has another body for each factor, the same name and the same parameters."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last = nn.Linear(4, 2)
            self.register_buffer("table", torch.arange(3) + extra, persistent=False)

        if factor == 1:

            def forward(self, x: Tensor) -> Tensor:
                return self.last(x)
        else:

            def forward(self, x: Tensor) -> Tensor:
                return self.last(x) * 2

    return Block()


def weigh_loss(weight: float) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda outputs, targets: functional.cross_entropy(outputs, targets) * weight


class ScaledData(Dataset[Any]):
    def __init__(self, scale: float, transform: Callable[[Tensor], Tensor] = abs) -> None:
        self.scale, self.transform = scale, transform

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.transform(X[index] * self.scale), Y[index]


class Share:
    def __init__(self, factor: Any = 1.0) -> None:
        self.factor = factor


def freeze(model: Any) -> None:
    model[0].requires_grad_(False)


def tie(model: Any) -> None:
    model.append(nn.Linear(8, 2))
    model[4].weight = model[3].weight


def append_layer(model: Any) -> None:
    model.append(nn.Linear(8, 2))


def add_hook(model: Any) -> None:
    model[1].register_forward_hook(lambda layer, inputs, outputs: outputs * 2)


def make_scaled(scale: float, power: int = 1) -> object:
    """An instance of a class with a constant and a static method, which differ in other ways than its attributes."""

    class Scaled(Share):
        scale_of_class = scale

        if power == 1:

            @staticmethod
            def apply(x: Tensor) -> Tensor:
                return x
        else:

            @staticmethod
            def apply(x: Tensor) -> Tensor:
                return x**2

    return Scaled()


DIFFERENT: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "activation": (
        {"model": net()},
        {"model": net(nn.Tanh())},
        "model.1 was torch.nn.modules.activation.LeakyReLU and",
    ),
    "slope": ({"model": net()}, {"model": net(nn.LeakyReLU(0.2))}, "model.1.negative_slope was 0.1 and is 0.2"),
    "frozen": ({"model": net()}, {"model": apply_change(net(), freeze)}, "model.0.bias was (8,) torch.float32 and is"),
    "tied": (
        {"model": apply_change(net(), tie)},
        {"model": apply_change(net(), append_layer)},
        "the same as model.3.weight",
    ),
    "hook": ({"model": net()}, {"model": apply_change(net(), add_hook)}, "model.1 hooks was absent"),
    "forward body": ({"model": block(1)}, {"model": block(2)}, "model was block.<locals>.Block "),
    "constant buffer": ({"model": block(1)}, {"model": block(1, 5)}, "model.table was Tensor"),
    "closure of a loss": (
        {"loss": weigh_loss(1.0)},
        {"loss": weigh_loss(2.0)},
        "loss was weigh_loss.<locals>.<lambda> ",
    ),
    "partial": (
        {"loss": functools.partial(functional.cross_entropy, label_smoothing=0.1)},
        {"loss": functools.partial(functional.cross_entropy, label_smoothing=0.2)},
        "loss was partial",
    ),
    "class weights": (
        {"loss": nn.CrossEntropyLoss(torch.tensor([1.0, 2.0]))},
        {"loss": nn.CrossEntropyLoss(torch.tensor([1.0, 3.0]))},
        "loss.weight was",
    ),
    "numbers of NumPy": (
        {"loss": Share(np.float32(1))},
        {"loss": Share(np.float32(2))},
        "loss.factor was np.float32(1.0)",
    ),
    "queue": ({"loss": Share(deque([1]))}, {"loss": Share(deque([2]))}, "loss.factor was deque"),
    "data set": (
        {"train_data": ScaledData(1.0)},
        {"train_data": ScaledData(2.0)},
        "train_data.scale was 1.0 and is 2.0",
    ),
    "transform": (
        {"train_data": ScaledData(1.0, lambda x: x + 1)},
        {"train_data": ScaledData(1.0, lambda x: x - 1)},
        "train_data.transform was",
    ),
    "wrapped data set": (
        {"train_data": Subset(ScaledData(1.0), [0])},
        {"train_data": Subset(ScaledData(2.0), [0])},
        "train_data.dataset was",
    ),
    "constant of a class": ({"loss": make_scaled(1.0)}, {"loss": make_scaled(2.0)}, "loss was make_scaled"),
    "static method": ({"loss": make_scaled(1.0)}, {"loss": make_scaled(1.0, 2)}, "loss was make_scaled"),
    "metric": ({"metrics": Share()}, {"metrics": Share(2.0)}, "metrics.share.factor was 1.0 and is 2.0"),
}


def record(objects: dict[str, Any]) -> dict[str, str]:
    metrics = UserMetrics({"share": objects.get("metrics", Share())})
    parts = UserParts(metrics=metrics, callbacks=Callbacks(on_step=objects.get("on_step")))
    data = {"train_data": objects.get("train_data", ScaledData(1.0))}
    return object_record.collect_rows(objects.get("model", net()), objects.get("loss"), data, parts)


@pytest.mark.parametrize("name", DIFFERENT)
def test_other_objects_are_refused_and_named(name: str, tmp_path: Path) -> None:
    first, second, expected = DIFFERENT[name]
    assert object_record.check(tmp_path, record(first)) == []
    assert object_record.check(tmp_path, record(first)) == []
    with pytest.raises(CheckpointError) as raised:
        object_record.check(tmp_path, record(second))
    assert expected in str(raised.value)
    assert says(str(raised.value), "undo-change-start-new")


def test_the_same_code_built_again_is_the_same(tmp_path: Path) -> None:
    for _ in range(2):
        objects = {"model": block(2), "loss": weigh_loss(2.0), "train_data": ScaledData(1.0, lambda x: x + 1)}
        assert object_record.check(tmp_path, record(objects)) == []


def test_a_class_that_was_copied_meanwhile_is_the_same() -> None:
    """`copy` and `pickle` note the slots of a class in it."""

    class NeverCopied(ScaledData):
        pass

    before = object_record._describe_value(NeverCopied)
    copy.copy(NeverCopied(2.0))
    assert "__slotnames__" in vars(NeverCopied)
    assert object_record._describe_value(NeverCopied) == before


def test_another_callback_is_said_and_a_metric_that_raised_may_be_mended(tmp_path: Path) -> None:
    object_record.check(tmp_path, record({"on_step": print}))
    assert says_each(object_record.check(tmp_path, record({})), [get_message("step-run-started")])
    write_json(tmp_path / "state.json", {"exit_code": UserCodeError.exit_code})
    lines = object_record.check(tmp_path, record({"on_step": print, "metrics": Share(2.0)}))
    assert says_each(lines, [get_message("metrics-run-started")])


def test_what_the_training_changes_itself_is_no_difference(tmp_path: Path) -> None:
    data = ScaledData(1.0)
    object_record.check(tmp_path, record({"train_data": data}))
    data.scale = 3.0
    object_record.note_changes(tmp_path, record({"train_data": data}))
    assert object_record.check(tmp_path, record({"train_data": data})) == []
    with pytest.raises(CheckpointError, match=r"train_data\.transform"):
        object_record.check(tmp_path, record({"train_data": ScaledData(1.0, lambda x: x)}))


def decay(rate: float) -> Callable[[int], float]:
    return lambda step: rate**step


def make_halving(power: int) -> type[lr_scheduler.LRScheduler]:
    class Halving(lr_scheduler.LRScheduler):
        if power == 1:

            def get_lr(self) -> Any:
                return [rate / 2 for rate in self.base_lrs]
        else:

            def get_lr(self) -> Any:
                return [rate / 4 for rate in self.base_lrs]

    return Halving


def in_sequence(gamma: float) -> Callable[[Any], Any]:
    return lambda o: lr_scheduler.SequentialLR(o, [lr_scheduler.LinearLR(o), lr_scheduler.ExponentialLR(o, gamma)], [2])


def in_chain(first: Callable[[int], float]) -> Callable[[Any], Any]:
    return lambda o: lr_scheduler.ChainedScheduler([lr_scheduler.LambdaLR(o, first), lr_scheduler.StepLR(o, 3)])


SCHEDULERS: dict[str, tuple[Any, Any, str]] = {
    "step": (lambda o: lr_scheduler.StepLR(o, 1, 0.5), lambda o: lr_scheduler.StepLR(o, 1, 0.9), "schedule.gamma was 0.5 and"),
    "lambda": (lambda o: lr_scheduler.LambdaLR(o, lambda e: 0.5**e), lambda o: lr_scheduler.LambdaLR(o, lambda e: 0.9**e), "schedule.lr_lambdas"),
    "closure": (lambda o: lr_scheduler.LambdaLR(o, decay(0.5)), lambda o: lr_scheduler.LambdaLR(o, decay(0.9)), "schedule.lr_lambdas"),
    "multiplied": (lambda o: lr_scheduler.MultiplicativeLR(o, decay(0.5)), lambda o: lr_scheduler.MultiplicativeLR(o, decay(0.9)), "schedule.lr_lambdas"),
    "one cycle": (lambda o: lr_scheduler.OneCycleLR(o, 0.1, 40), lambda o: lr_scheduler.OneCycleLR(o, 0.1, 50), "schedule.total_steps was 40 and"),
    "cycles": (lambda o: lr_scheduler.CyclicLR(o, 0.1, 1, scale_fn=decay(1)), lambda o: lr_scheduler.CyclicLR(o, 0.1, 1, scale_fn=decay(2)), "scale_fn"),  # type: ignore[arg-type]
    "sequence": (in_sequence(0.5), in_sequence(0.9), "schedule._schedulers was list"),
    "milestone": (in_sequence(0.5), lambda o: lr_scheduler.SequentialLR(o, [lr_scheduler.LinearLR(o), lr_scheduler.ExponentialLR(o, 0.5)], [3]), "schedule._milestones"),
    "chain": (in_chain(decay(0.5)), in_chain(decay(0.9)), "schedule._schedulers was list"),
    "kind": (lambda o: lr_scheduler.StepLR(o, 1), lambda o: lr_scheduler.ExponentialLR(o, 0.1), "schedule was torch.optim.lr_scheduler.StepLR"),
    "class": (lambda o: make_halving(1)(o), lambda o: make_halving(2)(o), "schedule was make_halving"),
}  # fmt: skip


@pytest.mark.parametrize("as_object", [False, True], ids=["function", "object"])
@pytest.mark.parametrize("kind", SCHEDULERS)
def test_another_scheduler_is_refused_after_steps_of_the_first(kind: str, as_object: bool, tmp_path: Path) -> None:
    first, second, difference = SCHEDULERS[kind]

    def build_parts(make: Any, momentum: float = 0.9) -> UserParts:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=momentum)
        schedule = UserSchedule(make(optimizer) if as_object else make, "step")
        return UserParts(UserOptimizer(optimizer, model), schedule)

    def collect(parts: UserParts) -> dict[str, str]:
        return object_record.collect_rows(net(), None, {}, parts)

    parts = build_parts(first)
    object_record.check(tmp_path, collect(parts))
    assert parts.optimizer is not None
    assert parts.schedule is not None
    scheduler = parts.schedule.build(parts.optimizer.optimizer)
    for _ in range(3):
        parts.optimizer.optimizer.step()
        scheduler.step()
    object_record.note_changes(tmp_path, collect(parts))
    assert object_record.check(tmp_path, collect(build_parts(first))) == []
    with pytest.raises(CheckpointError) as raised:
        object_record.check(tmp_path, collect(build_parts(second)))
    assert difference in str(raised.value)
    if kind != "one cycle" and kind != "cycles":  # these set the momentum themselves
        with pytest.raises(CheckpointError, match=r"optimizer\.0\.momentum was 0\.9 and is 0\.8"):
            object_record.check(tmp_path, collect(build_parts(first, momentum=0.8)))


def test_a_run_that_continues_a_finished_one_may_have_another_schedule(tmp_path: Path) -> None:
    rows = record({}) | {"schedule": "1"}
    object_record.check(tmp_path, rows)
    assert says_each(object_record.check(tmp_path, record({}), extends=True), [get_message("schedule-run-started")])
    assert object_record.check(tmp_path, record({})) == []
    with pytest.raises(CheckpointError, match=r"model\.1"):
        object_record.check(tmp_path, record({"model": net(nn.Tanh())}), extends=True)


def test_a_stopped_training_goes_on_with_the_same_objects_alone(tmp_path: Path) -> None:
    def stop(info: drivetrain.TrainingInfo) -> None:
        if info.step == 3:
            os.kill(os.getpid(), signal.SIGTERM)

    def train(loss: object, **more: Any) -> drivetrain.Result:
        data = (X, Y), (X, Y)
        return drivetrain.train(net(), *data, loss=loss, runs=tmp_path, epochs=2, batch_size=16, quiet=True, **more)  # type: ignore[arg-type]

    with pytest.raises(Stopped):
        train(weigh_loss(1.0), on_step=stop)
    for _ in range(2):  # a refusal changes nothing
        with pytest.raises(CheckpointError, check=saying("unfinished-started-objects-loss")):
            train(weigh_loss(2.0))
    assert train(weigh_loss(1.0)).folder.name == "library-001"
    assert train(weigh_loss(2.0), new=True).folder.name == "library-002"
