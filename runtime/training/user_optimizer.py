"""An optimizer and a scheduler of a Python program, in the place of those of the spec."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

Scheduling = LRScheduler | Callable[[Optimizer], LRScheduler]


class UserOptimizer:
    """An optimizer over the parameters of one network; measurements before the training get copies of it.

    Args:
        optimizer: of the program.
        model: the network whose parameters it has.
    """

    def __init__(self, optimizer: Optimizer, model: nn.Module) -> None:
        self.optimizer, self.model = optimizer, model

    def build(self, model: nn.Module) -> Optimizer:
        """The optimizer itself for its own network; for a copy of that network, a copy with the same state."""
        made = self.optimizer
        if model is not self.model:
            pairs = zip(self.model.parameters(), model.parameters(), strict=True)
            made = copy.deepcopy(made, {id(old): new for old, new in pairs})
        _move_state(made)
        return made


class UserSchedule:
    """A scheduler of a Python program, or a function that makes one for an optimizer.

    Args:
        given: the scheduler or the function.
        every: `step` or `epoch`: when the scheduler steps.
    """

    def __init__(self, given: Scheduling, every: str) -> None:
        self.given, self.every = given, every

    def build(self, optimizer: Optimizer) -> LRScheduler:
        """The scheduler of this optimizer; a scheduler object is copied for a copy of its optimizer."""
        if not isinstance(self.given, LRScheduler):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return self.given(optimizer)
        if self.given.optimizer is optimizer:
            return self.given
        return copy.deepcopy(self.given, {id(self.given.optimizer): optimizer})


def _move_state(optimizer: Optimizer) -> None:
    """Move the state to the device of the parameters: the optimizer may have been made before the network moved."""
    if any(
        isinstance(value, Tensor) and value.ndim and value.device != parameter.device
        for parameter, entry in optimizer.state.items()
        for value in entry.values()
    ):
        optimizer.load_state_dict(optimizer.state_dict())


def unstorable(optimizer: Optimizer, model: nn.Module) -> str | None:
    """Why a checkpoint cannot hold this optimizer's state, found with one step of a copy; None if it can.

    Raises:
        Exception: whatever the optimizer's step raises.
    """
    trial = copy.deepcopy(model)
    made = UserOptimizer(optimizer, model).build(trial)
    for group in made.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.zeros_like(parameter)
    made.step()
    for entry in made.state.values():
        for name, value in entry.items():
            if not (value is None or isinstance(value, Tensor | bool | int | float)):
                return f"{name!r} of its state is of type {type(value).__name__}"
    return None


def group_settings(optimizer: Optimizer) -> list[dict[str, Any]]:
    """The plain values of every parameter group, which some optimizers and schedulers change while they train."""
    return [
        {key: value for key, value in group.items() if key != "params" and _plain(value)}
        for group in optimizer.param_groups
    ]


def load_group_settings(optimizer: Optimizer, saved: Iterable[Mapping[str, Any]]) -> None:
    """Restore `group_settings`, also from JSON."""
    for group, values in zip(optimizer.param_groups, saved, strict=True):
        group.update({key: tuple(value) if isinstance(value, list) else value for key, value in values.items()})


def _plain(value: object) -> bool:
    if isinstance(value, tuple | list):
        return all(_plain(each) for each in value)
    return value is None or isinstance(value, bool | int | float | str)
