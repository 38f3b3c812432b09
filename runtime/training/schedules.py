"""Learning rate schedules as pure functions of the step: no state to save or restore."""

from __future__ import annotations

import math
from collections.abc import Callable

from runtime.job.train import Constant, Cosine, Linear, OneCycle, Plateau, StepDown, Train

Spec = OneCycle | Cosine | Linear | StepDown | Plateau | Constant
Schedule = Callable[[int], float]
"""Step (0 for the first) -> factor on the learning rate."""

ONE_CYCLE_START = 1 / 25
ONE_CYCLE_END = 1e-4


def of_job(train: Train, per_epoch: int, origin: int = 0) -> Schedule:
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
        rest = schedule(spec, steps - origin, per_epoch)
        return lambda step: rest(step - origin)
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


def _warm(step: int, steps: int, warmup: float, rest: Callable[[float], float]) -> float:
    climb = warmup * steps
    if step < climb:
        return (step + 1) / (climb + 1)
    return rest((step - climb) / max(1.0, steps - climb))


def _one_cycle(step: int, steps: int, warmup: float) -> float:
    """Cosine from 1/25 up to the peak, then cosine down to 1/10,000 of it (Smith & Topin 2018)."""
    climb = max(1.0, warmup * steps) if warmup else 0.0
    if step < climb:
        return 1 - (1 - ONE_CYCLE_START) * _cosine(step / climb)
    return ONE_CYCLE_END + (1 - ONE_CYCLE_END) * _cosine((step - climb) / max(1.0, steps - 1 - climb))
