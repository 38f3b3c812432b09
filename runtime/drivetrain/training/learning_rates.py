"""Sets the learning rate of every step: by the schedule of the spec, or by a scheduler of a Python program.

The schedules of the spec are pure functions of the step: they have no state to save or restore.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable
from typing import Protocol

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from drivetrain.job.train import Constant, Cosine, Linear, OneCycle, Plateau, StepDown, Train
from drivetrain.training.counters import Counters
from drivetrain.training.optimizer import set_rate
from drivetrain.training.user_parts import group_settings, load_group_settings

Spec = OneCycle | Cosine | Linear | StepDown | Plateau | Constant
Schedule = Callable[[int], float]
"""Step (0 for the first) -> factor on the learning rate."""

ONE_CYCLE_START = 1 / 25
ONE_CYCLE_END = 1e-4


def schedule_of_job(train: Train, per_epoch: int, origin: int = 0) -> Schedule:
    """The schedule of a run of `per_epoch` steps per epoch; `origin` as in `schedule`."""
    total = per_epoch * train.epochs
    return schedule(train.schedule, min(total, train.steps or total), per_epoch, origin)


def schedule(spec: Spec, steps: int, per_epoch: int, origin: int = 0) -> Schedule:
    """The factor by step.

    Args:
        spec: from the job.
        steps: optimizer steps of the whole run.
        per_epoch: optimizer steps per epoch.
        origin: the step that the schedule starts at; not 0 if it was started again in an extended run.
    """
    if origin:
        after_origin = schedule(spec, steps - origin, per_epoch)
        return lambda step: after_origin(step - origin)
    match spec:
        case OneCycle():
            return lambda step: _one_cycle(step, steps, spec.warmup)
        case Cosine():
            return lambda step: _warm(step, steps, spec.warmup, lambda x: spec.floor + (1 - spec.floor) * _cosine(x))
        case Linear():
            return lambda step: _warm(step, steps, spec.warmup, lambda x: 1 - x)
        case StepDown():
            return lambda step: spec.factor ** (step // (per_epoch * spec.epochs))
        case Plateau() | Constant():
            # The drops of a plateau schedule depend on metrics; the run multiplies by `BestMetric.factor`.
            return lambda step: 1.0


def _cosine(x: float) -> float:
    return (1 + math.cos(math.pi * x)) / 2


def _warm(step: int, steps: int, warmup: float, after_warmup: Callable[[float], float]) -> float:
    climb = warmup * steps
    if step < climb:
        return (step + 1) / (climb + 1)
    return after_warmup((step - climb) / max(1.0, steps - climb))


def _one_cycle(step: int, steps: int, warmup: float) -> float:
    """Cosine from 1/25 up to the peak, then cosine down to 1/10,000 of it (Smith & Topin 2018)."""
    climb = max(1.0, warmup * steps) if warmup else 0.0
    if step < climb:
        return 1 - (1 - ONE_CYCLE_START) * _cosine(step / climb)
    return ONE_CYCLE_END + (1 - ONE_CYCLE_END) * _cosine((step - climb) / max(1.0, steps - 1 - climb))


SCHEDULED = ("lr", "momentum", "betas")
"""Settings of a parameter group that schedulers of torch change."""


class LearningRates(Protocol):
    """Sets the rates of an optimizer's parameter groups."""

    def set(self, counters: Counters, factor: float) -> float:
        """Set the rates of the next step; returns that of the first group.

        Args:
            counters: the position of the run.
            factor: of a plateau schedule.
        """
        ...

    def restart(self, counters: Counters) -> None:
        """Continue from another position: after a resume, or a rollback."""
        ...


class ScheduledRates:
    """The rate of each group times a factor that is a function of the step.

    Args:
        optimizer: whose rates are set.
        rate: that of the spec at the top of the schedule.
        schedule: the factor by step.
        own: whether the optimizer is that of a program, whose groups have rates of their own.
        report: says, once, that rates which the program sets are lost.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        rate: float,
        schedule: Schedule,
        *,
        keeps_rates: bool,
        report: Callable[[str], None],
    ) -> None:
        self.optimizer, self.rate, self.schedule, self.report = optimizer, rate, schedule, report
        self.base = [float(group["lr"]) for group in optimizer.param_groups] if keeps_rates else None
        self.set_last: list[float] | None = None
        """What it has set, by group of an optimizer of the program."""
        self.warned = False

    def set(self, counters: Counters, factor: float) -> float:
        """Set rate * schedule * factor."""
        rate = float(self.rate * self.schedule(counters.step) * factor)
        if self.base is None:
            set_rate(self.optimizer, rate)
            return rate
        if self.set_last not in (None, [group["lr"] for group in self.optimizer.param_groups]) and not self.warned:
            self.warned = True
            self.report(
                'sets the learning rates in every step, so those that on_step sets are lost; schedule="constant" keeps them'
            )
        self.set_last = [base * self.schedule(counters.step) * factor for base in self.base]
        for group, new in zip(self.optimizer.param_groups, self.set_last, strict=True):
            group["lr"] = new
        return rate

    def restart(self, counters: Counters) -> None:
        """Nothing but to forget what was set: the rate depends on the step alone."""
        self.set_last = None


class ProgramsRates:
    """The rates that an optimizer of a program has, which its callbacks may set; no schedule changes them."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer

    def set(self, counters: Counters, factor: float) -> float:
        """Set nothing."""
        return float(self.optimizer.param_groups[0]["lr"])

    def restart(self, counters: Counters) -> None:
        """Nothing: a checkpoint holds the rates."""


class SteppedRates:
    """The rates that a scheduler of torch sets. Where a run continues elsewhere, its steps are made again.

    Args:
        optimizer: whose rates are set.
        scheduler: of this optimizer.
        every: `step` or `epoch`: when the scheduler steps.
    """

    def __init__(self, optimizer: Optimizer, scheduler: LRScheduler, every: str) -> None:
        self.optimizer, self.scheduler, self.every = optimizer, scheduler, every
        self.state = copy.deepcopy(scheduler.state_dict())
        self.groups = [{key: group[key] for key in SCHEDULED if key in group} for group in group_settings(optimizer)]
        self.done = 0

    def set(self, counters: Counters, factor: float) -> float:
        """Step the scheduler up to the present step or epoch."""
        due = counters.step if self.every == "step" else counters.epoch
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the order of both steps, which a resume cannot keep
            while self.done < due:
                self.scheduler.step()
                self.done += 1
        return float(self.optimizer.param_groups[0]["lr"])

    def restart(self, counters: Counters) -> None:
        """Start the scheduler again, up to the present step or epoch."""
        load_group_settings(self.optimizer, self.groups)
        self.scheduler.load_state_dict(copy.deepcopy(self.state))
        self.done = 0
        self.set(counters, 1.0)
