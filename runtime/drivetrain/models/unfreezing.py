"""Gradual unfreezing (`model.unfreeze`): frozen parameters that are trained from an epoch on."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from torch import nn

from drivetrain.errors import Problem, SpecError
from drivetrain.job import Job
from drivetrain.job.model import Unfreeze
from drivetrain.models import freeze


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
        return sum(unfrozen_at <= epoch for unfrozen_at in self.epochs)

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


def find_unfreezing(model: nn.Module, spec: Sequence[Unfreeze], job: Job) -> Unfreezing:
    """The unfreezing of a network whose frozen parameters are those of the first epoch.

    Raises:
        SpecError: if a pattern matches nothing, or nothing that is still frozen.
    """
    frozen = [name for name, p in model.named_parameters() if not p.requires_grad]
    first: dict[str, int] = {}
    problems: list[Problem] = []
    for number, entry in sorted(enumerate(spec), key=lambda pair: pair[1].epoch):
        for position, pattern in enumerate(entry.names):
            matching = [name for name in freeze.match_layers(frozen, pattern) if name not in first]
            if not matching:
                key = ("model", "unfreeze", number, "names", position)
                description = _describe_unmatched(model, pattern, first)
                remaining = [name for name in frozen if name not in first]
                problems.append(freeze.unknown_layer_problem(job, key, description, pattern, remaining))
            first |= dict.fromkeys(matching, entry.epoch - 1)
    if problems:
        raise SpecError(problems)
    order = {name: first[name] for name, _ in model.named_parameters() if name in first}
    return Unfreezing(order)


def _describe_unmatched(model: nn.Module, pattern: str, first: Mapping[str, int]) -> str:
    if thawed := freeze.match_layers(first, pattern):
        return f"{pattern!r} is unfrozen in epoch {first[thawed[0]] + 1} already"
    matching = freeze.match_layers([name for name, _ in model.named_parameters()], pattern)
    return f"{pattern!r} is not frozen (model.freeze)" if matching else f"no layer matches {pattern!r}"


def note_unreached(unfreezing: Unfreezing, job: Job, samples: int) -> list[str]:
    """A note on what stays frozen because `train.steps` ends the run before; `samples` of the training data."""
    steps, per_epoch = job.train.steps, -(-samples // job.train.batch)
    if steps is None or unfreezing.last * per_epoch < steps:
        return []
    first = next(epoch for epoch in unfreezing.epochs if epoch * per_epoch >= steps)
    return [f"model.unfreeze in epoch {first + 1} is never reached: train.steps ends the run after {steps:,} steps"]
