"""Wraps the optimizer, scheduler, metrics and callbacks that a Python program passes to its training."""

from __future__ import annotations

import contextlib
import copy
import math
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from drivetrain.data.custom import broadcasts
from drivetrain.data.custom.user_errors import blame_user_code
from drivetrain.data.dataset import Head
from drivetrain.errors import UserCodeError


class UserMetrics:
    """Metrics by name; each has `reset()`, `update(outputs, targets)` and `compute()`."""

    def __init__(self, metrics: Mapping[str, Any] | None = None) -> None:
        self.metrics = dict(metrics or {})

    def begin(self) -> None:
        """Start an evaluation."""
        for name, metric in self.metrics.items():
            with _blame_user_code(name, "reset"):
                metric.reset()

    def add(
        self, outputs: Tensor | Mapping[str, Tensor], targets: Mapping[str, Tensor], heads: Mapping[str, Head]
    ) -> None:
        """Add a batch: outputs (N, outputs), and the targets of the same samples.

        Labels are whole numbers, (N, labels); a single number for each sample is (N,), as are its outputs.

        Raises:
            UserCodeError: if a metric raises.
        """
        if not self.metrics:
            return
        assert isinstance(outputs, Tensor), "a network of a Python program has one output"
        predicted, target, head = outputs.float(), targets[""], heads[""]
        if head.several:
            target = target.long()
        elif len(head.columns) == 1:
            predicted, target = predicted.reshape(len(predicted)), target.reshape(len(target))
        for name, metric in self.metrics.items():
            with _blame_user_code(name, "update"):
                if hasattr(metric, "to"):
                    metric.to(predicted.device)
                metric.update(predicted, target)

    def find_broadcast(
        self, outputs: Tensor, targets: Mapping[str, Tensor], heads: Mapping[str, Head]
    ) -> tuple[str, str] | None:
        """Find the first metric that combines every sample with every other, and describe it; None if there is none.

        Copies of the metrics get samples as in `add`. Their errors are ignored; the evaluation raises them.
        """
        for name, metric in self.metrics.items():
            trial = UserMetrics()

            def add_rows(rows: Tensor, row_targets: Tensor, trial: UserMetrics = trial) -> None:
                trial.begin()
                trial.add(rows, {"": row_targets}, heads)

            with contextlib.suppress(Exception):
                trial.metrics[name] = copy.deepcopy(metric)
                broadcast = broadcasts.find_broadcast(add_rows, outputs.detach(), targets[""])
                if broadcast:
                    return name, broadcast
        return None

    def compute(self) -> dict[str, float]:
        """Compute the value of each metric, as `validation/NAME`.

        Raises:
            UserCodeError: if a metric raises or does not return a single number.
        """
        values: dict[str, float] = {}
        for name, metric in self.metrics.items():
            with _blame_user_code(name, "compute"):
                value = metric.compute()
            if not isinstance(value, Tensor | int | float) or (isinstance(value, Tensor) and value.numel() != 1):
                shape = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
                raise UserCodeError(
                    f"metrics: {name}: compute() gives {shape}",
                    "one number for each metric",
                    'average it, as with average="macro", or give each metric of a collection by its name',
                )
            values[f"validation/{name}"] = float(value)
        return values


def _blame_user_code(name: str, method: str) -> Any:
    return blame_user_code(UserCodeError, f"metrics: {name}: {method}() raised")


Scheduling = LRScheduler | Callable[[Optimizer], LRScheduler]


class UserOptimizer:
    """An optimizer for the parameters of one network; measurements before the training get copies of it."""

    def __init__(self, optimizer: Optimizer, model: nn.Module) -> None:
        self.optimizer, self.model = optimizer, model

    def build(self, model: nn.Module) -> Optimizer:
        """Return the optimizer itself for its own network; for a copy of the network, a copy with the same state."""
        optimizer = self.optimizer
        if model is not self.model:
            pairs = zip(self.model.parameters(), model.parameters(), strict=True)
            optimizer = copy.deepcopy(optimizer, {id(old): new for old, new in pairs})
        # The program may have built the optimizer before the network moved to its device.
        if _has_state_elsewhere(optimizer):
            optimizer.load_state_dict(optimizer.state_dict())  # also moves the state to the parameters' device
        return optimizer

    def copy(self) -> Optimizer:
        """Copy the optimizer with its parameters, but not the network, because not every network can be copied."""
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        copies = {id(p): nn.Parameter(p.detach().clone(), p.requires_grad) for p in parameters}
        return copy.deepcopy(self.optimizer, copies)


def _has_state_elsewhere(optimizer: Optimizer) -> bool:
    """Return whether a tensor of the optimizer's state is not on the device of its parameter."""
    for parameter, entry in optimizer.state.items():
        for value in entry.values():
            if isinstance(value, Tensor) and value.ndim and value.device != parameter.device:
                return True
    return False


class UserSchedule:
    """A scheduler of a Python program, or a function that makes a scheduler for an optimizer.

    Args:
        scheduling: scheduler or function.
        every: interval of the scheduler's steps: `step` or `epoch`.
    """

    def __init__(self, scheduling: Scheduling, every: str) -> None:
        self.scheduling, self.every = scheduling, every

    def build(self, optimizer: Optimizer) -> LRScheduler:
        """Build the scheduler for this optimizer; a scheduler object is copied for a copy of its optimizer."""
        if not isinstance(self.scheduling, LRScheduler):
            with warnings.catch_warnings(action="ignore"):
                return self.scheduling(optimizer)
        if self.scheduling.optimizer is optimizer:
            return self.scheduling
        return copy.deepcopy(self.scheduling, {id(self.scheduling.optimizer): optimizer})

    def build_trial(self, optimizer: Optimizer) -> LRScheduler:
        """Build a scheduler for a copy of the optimizer with the same parameters; its steps change nothing."""
        trial_optimizer = copy.copy(optimizer)
        trial_optimizer.param_groups = [dict(group) for group in optimizer.param_groups]
        # A rate may be a tensor, which schedulers change in place.
        for group in trial_optimizer.param_groups:
            for name, value in group.items():
                if isinstance(value, Tensor):
                    group[name] = value.clone()
        return self.build(trial_optimizer)

    def find_end(self, optimizer: Optimizer, steps: int) -> tuple[int, Exception] | None:
        """Find the number of steps after which the scheduler raises, and its error; None if it completes `steps`."""
        scheduler = self.build_trial(optimizer)
        if _calls_functions(scheduler):  # a user's function may count its calls
            return None
        with warnings.catch_warnings(action="ignore"):  # the optimizer makes no steps
            for done in range(steps):
                try:
                    scheduler.step()
                except Exception as error:  # a scheduler of the user may raise anything
                    return done, error
        return None


def _calls_functions(scheduler: LRScheduler) -> bool:
    """Return whether a scheduler, or a scheduler inside it, computes rates with functions of the user."""
    schedulers = [scheduler, *getattr(scheduler, "_schedulers", [])]
    return any(getattr(member, "lr_lambdas", None) for member in schedulers)


def find_unstorable_state(optimizer: UserOptimizer) -> str | None:
    """Explain why a checkpoint cannot store this optimizer's state, after one step of a copy; None if it can.

    Raises:
        Exception: any error of the optimizer's step.
    """
    trial_optimizer = optimizer.copy()
    layers = optimizer.model.modules()
    sparse = {id(x.weight) for x in layers if isinstance(x, nn.Embedding | nn.EmbeddingBag) and x.sparse}
    for trial_group, group in zip(trial_optimizer.param_groups, optimizer.optimizer.param_groups, strict=True):
        for trial_parameter, parameter in zip(trial_group["params"], group["params"], strict=True):
            layout = torch.sparse_coo if id(parameter) in sparse else trial_parameter.layout
            trial_parameter.grad = torch.zeros_like(trial_parameter, layout=layout)
    trial_optimizer.step()
    for entry in trial_optimizer.state.values():
        for name, value in entry.items():
            if not (value is None or isinstance(value, Tensor | bool | int | float)):
                return f"{name!r} of its state is of type {type(value).__name__}"
    return None


def read_group_settings(optimizer: Optimizer) -> list[dict[str, Any]]:
    """Read the plain values of each parameter group; optimizers and schedulers change some of them during training."""
    settings = []
    for group in optimizer.param_groups:
        values = {key: value.item() if _is_number(value) else value for key, value in group.items()}
        del values["params"]
        settings.append({key: value for key, value in values.items() if _is_plain_value(value)})
    return settings


def load_group_settings(optimizer: Optimizer, saved: Iterable[Mapping[str, Any]]) -> None:
    """Restore the result of `read_group_settings`, also after a round trip through JSON."""
    for group, values in zip(optimizer.param_groups, saved, strict=True):
        for key, value in values.items():
            if _is_number(group.get(key)):
                group[key].fill_(value)  # the optimizer, and captured graphs, hold this tensor
            else:
                group[key] = tuple(value) if isinstance(value, list) else value


def _is_number(value: object) -> bool:
    """Return whether a setting is a tensor with one number, such as lr=torch.tensor(0.1)."""
    return isinstance(value, torch.Tensor) and value.numel() == 1


def _is_plain_value(value: object) -> bool:
    if isinstance(value, tuple | list):
        return all(_is_plain_value(member) for member in value)
    return value is None or isinstance(value, bool | int | float | str)


Callback = Callable[["TrainingInfo"], object]


class StopTraining(Exception):
    """Raised by a callback: the training ends after an evaluation, as if this were its last epoch."""


@dataclass(frozen=True)
class TrainingInfo:
    """The state of a training, for a callback. The values are copies: changing them does not change the training."""

    folder: Path
    """The run folder."""
    step: int
    """Optimizer steps so far."""
    steps: int
    """Optimizer steps of the whole run, if nothing ends it early."""
    epoch: int
    """The current epoch, from 1."""
    epochs: int
    """Epochs of the whole run."""
    loss: float = math.nan
    """on_step: the loss of the batch before the update."""
    lr: float = math.nan
    """on_step: the learning rate of the first parameter group."""
    grad_norm: float = math.nan
    """on_step: the norm of the gradients before clipping."""
    skipped: bool = False
    """on_step: whether the update was skipped, because loss or gradients were not finite."""
    metrics: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    """on_epoch: metrics of this evaluation; on_end: metrics of the best one."""
    best: bool = False
    """on_epoch: whether this evaluation is the best so far."""
    reason: str = ""
    """on_end: reason why the training ended."""


@dataclass(frozen=True)
class Callbacks:
    """The callbacks of a training; None for each callback that the program does not pass."""

    on_step: Callback | None = None
    """Called after every optimizer step."""
    on_epoch: Callback | None = None
    """Called after every evaluation."""
    on_end: Callback | None = None
    """Called when the run and its report are finished; not after a stop or a failure."""

    def call(self, name: str, info: TrainingInfo) -> str | None:
        """Call the callback `name`, if there is one; returns the reason if it ends the training, else None.

        Raises:
            UserCodeError: if it raises.
        """
        callback: Callback | None = getattr(self, name)
        if callback is None:
            return None
        try:
            with blame_user_code(UserCodeError, f"{name} raised"):
                callback(info)
        except UserCodeError as error:
            if isinstance(error.__cause__, StopTraining):
                return f"{name}: {error.__cause__}".removesuffix(": ")
            raise
        return None


@dataclass(frozen=True)
class UserParts:
    """Objects that a Python program passes to its training; a training from a job file has none."""

    optimizer: UserOptimizer | None = None
    schedule: UserSchedule | None = None
    metrics: UserMetrics = field(default_factory=UserMetrics)
    callbacks: Callbacks = field(default_factory=Callbacks)
