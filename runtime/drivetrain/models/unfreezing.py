"""Gradual unfreezing (`model.unfreeze`): frozen parameters that are trained from some epoch on."""

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
    """The epochs from which frozen parameters are trained; epochs are counted from 0."""

    first: Mapping[str, int] = field(default_factory=dict)
    """By name of the parameter: the first epoch in which it is trained."""

    @property
    def epochs(self) -> list[int]:
        """The epochs at whose beginning parameters are unfrozen, in order."""
        return sorted(set(self.first.values()))

    @property
    def last(self) -> int:
        """The epoch from which all of them are trained; 0 if there are none."""
        return max(self.first.values(), default=0)

    def stage(self, epoch: int) -> int:
        """The number of unfreezings that have happened when an epoch begins."""
        return sum(unfrozen_at <= epoch for unfrozen_at in self.epochs)

    def names(self, epoch: int) -> list[str]:
        """The parameters that are unfrozen at the beginning of this very epoch."""
        return [name for name, first in self.first.items() if first == epoch]

    def apply(self, model: nn.Module, epoch: int) -> None:
        """Freeze and unfreeze the parameters of a network as in this epoch."""
        for name, parameter in model.named_parameters():
            if name in self.first:
                parameter.requires_grad_(self.first[name] <= epoch)

    @contextlib.contextmanager
    def during(self, model: nn.Module, epoch: int) -> Iterator[None]:
        """A block in which parameters are frozen as in this epoch; afterwards they are as before."""
        before = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
        self.apply(model, epoch)
        try:
            yield
        finally:
            for parameter, trained in before:
                parameter.requires_grad_(trained)


def find_unfreezing(model: nn.Module, spec: Sequence[Unfreeze], job: Job) -> Unfreezing:
    """Find the parameters that the spec unfreezes; those of the network are frozen as in the first epoch.

    Raises:
        SpecError: if a pattern matches no parameter, or none that is still frozen.
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
    if earlier := freeze.match_layers(first, pattern):
        return f"{pattern!r} is unfrozen in epoch {first[earlier[0]] + 1} already"
    matching = freeze.match_layers([name for name, _ in model.named_parameters()], pattern)
    return f"{pattern!r} is not frozen (model.freeze)" if matching else f"no layer matches {pattern!r}"


def note_unreached(unfreezing: Unfreezing, job: Job, samples: int) -> list[str]:
    """A note if `train.steps` ends the run before an unfreezing; `samples` is the number of training samples."""
    steps, epoch_steps = job.train.steps, -(-samples // job.train.batch)
    if steps is None or unfreezing.last * epoch_steps < steps:
        return []
    unreached = next(epoch for epoch in unfreezing.epochs if epoch * epoch_steps >= steps)
    return [f"model.unfreeze in epoch {unreached + 1} is never reached: train.steps ends the run after {steps:,} steps"]
