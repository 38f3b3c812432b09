"""Gradual unfreezing (`model.unfreeze`): frozen parameters that are trained from an epoch on."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from torch import nn

from runtime.errors import Problem, SpecError
from runtime.job import Job
from runtime.job.model import Unfreeze
from runtime.models import layer_names


@dataclass(frozen=True)
class Unfreezing:
    """From which epoch on frozen parameters are trained; epochs are counted from 0."""

    first: Mapping[str, int] = field(default_factory=dict)
    """The first epoch of each such parameter, by its name."""

    @property
    def epochs(self) -> list[int]:
        """The epochs that begin with an unfreezing."""
        return sorted(set(self.first.values()))

    @property
    def last(self) -> int:
        """The epoch from which on all are trained; 0 if there are none."""
        return max(self.first.values(), default=0)

    def stage(self, epoch: int) -> int:
        """How many unfreezings have happened when an epoch begins."""
        return sum(each <= epoch for each in self.epochs)

    def names(self, epoch: int) -> list[str]:
        """The parameters that are unfrozen at the beginning of this very epoch."""
        return [name for name, first in self.first.items() if first == epoch]

    def apply(self, model: nn.Module, epoch: int) -> None:
        """Freeze and unfreeze as in this epoch."""
        for name, parameter in model.named_parameters():
            if name in self.first:
                parameter.requires_grad_(self.first[name] <= epoch)

    @contextlib.contextmanager
    def during(self, model: nn.Module, epoch: int) -> Iterator[None]:
        """Frozen as in this epoch within the context, and as before afterwards."""
        before = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
        self.apply(model, epoch)
        try:
            yield
        finally:
            for parameter, trained in before:
                parameter.requires_grad_(trained)


def of(model: nn.Module, spec: Sequence[Unfreeze], job: Job) -> Unfreezing:
    """The unfreezing of a network whose frozen parameters are those of the first epoch.

    Raises:
        SpecError: if a pattern matches nothing, or nothing that is still frozen.
    """
    frozen = [name for name, p in model.named_parameters() if not p.requires_grad]
    first: dict[str, int] = {}
    problems: list[Problem] = []
    for number, entry in sorted(enumerate(spec), key=lambda pair: pair[1].epoch):
        for place, pattern in enumerate(entry.names):
            found = [name for name in layer_names.matching(frozen, pattern) if name not in first]
            if not found:
                key = ("model", "unfreeze", number, "names", place)
                given = _given(model, pattern, first)
                left = [name for name in frozen if name not in first]
                problems.append(layer_names.problem(job, key, given, pattern, left))
            first |= dict.fromkeys(found, entry.epoch - 1)
    if problems:
        raise SpecError(problems)
    order = {name: first[name] for name, _ in model.named_parameters() if name in first}
    return Unfreezing(order)


def _given(model: nn.Module, pattern: str, first: Mapping[str, int]) -> str:
    if thawed := layer_names.matching(first, pattern):
        return f"{pattern!r} is unfrozen in epoch {first[thawed[0]] + 1} already"
    known = layer_names.matching([name for name, _ in model.named_parameters()], pattern)
    return f"{pattern!r} is not frozen (model.freeze)" if known else f"no layer matches {pattern!r}"


def not_reached(found: Unfreezing, job: Job, samples: int) -> list[str]:
    """A note on what stays frozen because `train.steps` ends the run before; `samples` of the training data."""
    steps, per_epoch = job.train.steps, -(-samples // job.train.batch)
    if steps is None or found.last * per_epoch < steps:
        return []
    first = next(epoch for epoch in found.epochs if epoch * per_epoch >= steps)
    return [f"model.unfreeze in epoch {first + 1} is never reached: train.steps ends the run after {steps:,} steps"]
