"""Builds the optimizer of a run, one of torch's without weight decay on norms and biases, and sets its learning rates.

The rate of each step comes from the schedule of the spec, or from a scheduler of a Python program. The schedules of the
spec are pure functions of the step: they have no state to save or restore.
"""

from __future__ import annotations

import copy
import inspect
import math
import warnings
from collections.abc import Callable, Container, Mapping
from functools import cache, partial
from importlib import import_module
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from drivetrain.data.custom.user_errors import blame_user_code
from drivetrain.errors import UserCodeError
from drivetrain.job import Job
from drivetrain.job.train import Adam, Constant, Cosine, Linear, OneCycle, Plateau, Sgd, StepDown, Train
from drivetrain.training.time_target import MAX_EPOCHS, Counters
from drivetrain.training.user_parts import UserParts, load_group_settings, read_group_settings

FACTOR_KEY = "lr_factor"
"""Key of the learning rate's factor in a parameter group."""
Groups = list[dict[str, Any]]
"""Parameter groups of an optimizer."""
Builder = Callable[[Job, nn.Module, Groups, Container[int]], Optimizer]


def group_parameters(model: nn.Module, weight_decay: float, factors: Mapping[str, float] | None = None) -> Groups:
    """Divide the parameters into two groups for each factor of the learning rate, with and without weight decay.

    Norms, biases and other vectors have no decay.

    Args:
        model: network with the parameters.
        weight_decay: decay of the weights.
        factors: factors of the learning rate by name, for all parameters that are trained at any time; None for all
            parameters that are trainable now, with factor 1.
    """
    if factors is None:
        factors = {name: 1.0 for name, p in model.named_parameters() if p.requires_grad}
    parameter_groups: Groups = []
    for factor in dict.fromkeys(factors.values()):
        members = [p for name, p in model.named_parameters() if factors.get(name) == factor]
        decayed = [p for p in members if p.ndim > 1]
        undecayed = [p for p in members if p.ndim <= 1]
        parameter_groups += [
            {"params": decayed, "weight_decay": weight_decay, FACTOR_KEY: factor},
            {"params": undecayed, "weight_decay": 0.0, FACTOR_KEY: factor},
        ]
    return [group for group in parameter_groups if group["params"]]


def set_rate(optimizer: Optimizer, rate: float) -> None:
    """Set the learning rate, multiplied by each group's factor."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group[FACTOR_KEY]


def build(
    job: Job, model: nn.Module, factors: Mapping[str, float] | None = None, output_sizes: Container[int] = ()
) -> Optimizer:
    """Build the optimizer of a job.

    Args:
        job: job whose `train.optimizer` is built.
        model: network with the parameters.
        factors: factors of the learning rate, as in `group_parameters`.
        output_sizes: numbers of outputs of the network's heads.

    Raises:
        SpecError: if the optimizer cannot train this network.
    """
    module, _, function = job.train.optimizer.builder.partition(".")
    builder: Builder = getattr(import_module(f"drivetrain.training.{module}"), function)
    return builder(job, model, group_parameters(model, job.train.optimizer.weight_decay, factors), output_sizes)


def build_adam(job: Job, model: nn.Module, groups: Groups, output_sizes: Container[int]) -> Optimizer:
    """Build Adam or AdamW."""
    spec = job.train.optimizer
    assert isinstance(spec, Adam)
    kind = torch.optim.AdamW if spec.name == "adamw" else torch.optim.Adam
    optimizer: Optimizer = unhook(kind)(groups, lr=spec.lr, betas=spec.betas, eps=spec.eps, amsgrad=spec.amsgrad)
    return optimizer


def build_sgd(job: Job, model: nn.Module, groups: Groups, output_sizes: Container[int]) -> Optimizer:
    """Build SGD."""
    spec = job.train.optimizer
    assert isinstance(spec, Sgd)
    optimizer: Optimizer = unhook(torch.optim.SGD)(
        groups, lr=spec.lr, momentum=spec.momentum, nesterov=spec.nesterov, dampening=spec.dampening
    )
    return optimizer


@cache
def unhook(kind: Any) -> Any:
    """Return a subclass of an optimizer whose methods do not import torch's compiler."""
    # torch decorates these methods for its compiler, and the decorators import the compiler at the first call. The
    # import takes as long as torch's own, even in runs that compile nothing. An optimizer is never compiled here.
    methods = {name: inspect.unwrap(getattr(kind, name)) for name in ("step", "zero_grad", "add_param_group")}
    return type(kind.__name__, (kind,), methods | {"step": torch.no_grad()(methods["step"])})


Spec = OneCycle | Cosine | Linear | StepDown | Plateau | Constant
Schedule = Callable[[float], float]
"""Function of the step (from 0) that returns the factor on the learning rate."""

ONE_CYCLE_START, ONE_CYCLE_END = 1 / 25, 1e-4
"""First and last factor of a one-cycle schedule."""


def build_schedule(spec: Spec, steps: int, steps_per_epoch: int) -> Schedule:
    """Build the factor on the learning rate as a function of the step."""
    match spec:
        case OneCycle():
            return lambda step: _one_cycle(step, steps, spec.warmup)
        case Cosine():
            return lambda step: _apply_warmup(
                step, steps, spec.warmup, lambda x: spec.floor + (1 - spec.floor) * _decay(x)
            )
        case Linear():
            return lambda step: _apply_warmup(step, steps, spec.warmup, lambda x: 1 - x)
        case StepDown():
            return lambda step: spec.factor ** (step // (steps_per_epoch * spec.epochs))
        case Plateau() | Constant():
            # The drops of a plateau schedule depend on metrics: the rate is multiplied by `BestMetric.factor`.
            return lambda step: 1.0


def _decay(share: float) -> float:
    """Return half a cosine: 1 at share 0, falling to 0 at share 1."""
    return (1 + math.cos(math.pi * share)) / 2


def _apply_warmup(step: float, steps: int, warmup: float, after_warmup: Callable[[float], float]) -> float:
    """Return a linear rise to 1 during the warmup, then `after_warmup` of the finished share of the remaining steps."""
    warmup_steps = warmup * steps
    if step < warmup_steps:
        return (step + 1) / (warmup_steps + 1)
    return after_warmup((step - warmup_steps) / max(1.0, steps - warmup_steps))


def _one_cycle(step: float, steps: int, warmup: float) -> float:
    """Return a cosine from 1/25 up to the peak, then a cosine down to 1/10,000 of it (Smith & Topin 2018)."""
    warmup_steps = max(1.0, warmup * steps) if warmup else 0.0
    if step < warmup_steps:
        return 1 - (1 - ONE_CYCLE_START) * _decay(step / warmup_steps)
    return ONE_CYCLE_END + (1 - ONE_CYCLE_END) * _decay((step - warmup_steps) / max(1.0, steps - 1 - warmup_steps))


SCHEDULED_KEYS = ("lr", "momentum", "betas")
"""Keys of a parameter group that torch's schedulers change."""


class ScheduledRates:
    """Rates that are each group's base rate times a factor, which is a function of the step.

    Args:
        optimizer: optimizer whose rates are set.
        train: peak rate, schedule and its length.
        steps_per_epoch: optimizer steps per epoch.
        keeps_rates: whether each group keeps its own rate as the base, because the optimizer belongs to a program.
        report: function that is called once if the program sets rates, because the next step overwrites them.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        train: Train,
        steps_per_epoch: int,
        *,
        keeps_rates: bool,
        report: Callable[[str], None],
    ) -> None:
        self.optimizer, self.rate, self.report = optimizer, train.optimizer.lr, report
        steps = steps_per_epoch * (MAX_EPOCHS if train.within else train.epochs)
        self.total_steps = min(steps, train.steps or steps)
        self.schedule = build_schedule(train.schedule, self.total_steps, steps_per_epoch)
        self.base_rates = [float(group["lr"]) for group in optimizer.param_groups] if keeps_rates else None
        self.last_rates: list[float] | None = None
        """Rates of the last step by group, if `keeps_rates`."""
        self.has_warned = False

    def set(self, counters: Counters, factor: float, time_share: float | None = None) -> float:
        """Set rate * schedule * factor; with `train.within` the position in the schedule is the share of its time."""
        scheduled_step: float = counters.step
        if time_share is not None:
            scheduled_step = min(time_share, 1.0) * (self.total_steps - 1)
        scheduled_factor = self.schedule(scheduled_step) * factor
        rate = float(self.rate * scheduled_factor)
        if self.base_rates is None:
            set_rate(self.optimizer, rate)
            return rate
        current_rates = [group["lr"] for group in self.optimizer.param_groups]
        if self.last_rates not in (None, current_rates) and not self.has_warned:
            self.has_warned = True
            self.report(
                'sets the learning rates in every step and overwrites the rates that on_step sets; schedule="constant" keeps them'
            )
        self.last_rates = [base * scheduled_factor for base in self.base_rates]
        for group, group_rate in zip(self.optimizer.param_groups, self.last_rates, strict=True):
            group["lr"] = group_rate
        return rate

    def restart(self, counters: Counters) -> None:
        """Forget the rates of the last step; the next rates depend only on the step."""
        self.last_rates = None


class ProgramRates:
    """Rates of a program's optimizer, which its callbacks may set; no schedule changes them."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer

    def set(self, counters: Counters, factor: float, time_share: float | None = None) -> float:
        """Return the current rate without setting anything."""
        return float(self.optimizer.param_groups[0]["lr"])

    def restart(self, counters: Counters) -> None:
        """Do nothing, because a checkpoint contains the rates."""


class SchedulerRates:
    """Rates set by a scheduler of torch. After a resume or a rollback, its steps are repeated from the first.

    Args:
        optimizer: optimizer whose rates are set.
        scheduler: scheduler of this optimizer.
        every: interval of the scheduler's steps: `step` or `epoch`.
    """

    def __init__(self, optimizer: Optimizer, scheduler: LRScheduler, every: str) -> None:
        self.optimizer, self.scheduler, self.every = optimizer, scheduler, every
        self.initial_state = copy.deepcopy(scheduler.state_dict())
        settings = read_group_settings(optimizer)
        self.initial_groups = [{key: group[key] for key in SCHEDULED_KEYS if key in group} for group in settings]
        self.scheduler_steps = 0

    def set(self, counters: Counters, factor: float, time_share: float | None = None) -> float:
        """Step the scheduler up to the current step or epoch; raises UserCodeError if the user's code raises."""
        due_steps = counters.step if self.every == "step" else counters.epoch
        # torch warns if the scheduler steps before the optimizer, as it does after a resume.
        with warnings.catch_warnings(action="ignore"), blame_user_code(UserCodeError, "schedule raised"):
            while self.scheduler_steps < due_steps:
                self.scheduler.step()
                self.scheduler_steps += 1
        return float(self.optimizer.param_groups[0]["lr"])

    def restart(self, counters: Counters) -> None:
        """Start the scheduler again, and step it up to the current step or epoch."""
        load_group_settings(self.optimizer, self.initial_groups)
        self.scheduler.load_state_dict(copy.deepcopy(self.initial_state))
        self.scheduler_steps = 0
        self.set(counters, 1.0)


LearningRates = ScheduledRates | ProgramRates | SchedulerRates
"""Sets the rates of an optimizer's parameter groups."""


def build_rates(
    train: Train,
    optimizer: Optimizer,
    user_parts: UserParts,
    steps_per_epoch: int,
    report: Callable[[str, str], None],
) -> LearningRates:
    """Build the object that sets the rates, by the program's scheduler or the spec's schedule; `report` adds events."""
    if user_parts.schedule:
        return SchedulerRates(optimizer, user_parts.schedule.build(optimizer), user_parts.schedule.every)
    if user_parts.optimizer and train.schedule == Constant(name="constant"):
        return ProgramRates(optimizer)
    keeps_rates, report_lost_rates = user_parts.optimizer is not None, partial(report, "schedule")
    return ScheduledRates(optimizer, train, steps_per_epoch, keeps_rates=keeps_rates, report=report_lost_rates)
