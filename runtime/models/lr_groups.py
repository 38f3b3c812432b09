"""Learning rates by layer (`train.lr_groups`): the factor of each parameter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from runtime.errors import Problem, SpecError
from runtime.job import Job
from runtime.models import layer_names


@dataclass(frozen=True)
class LrGroup:
    """Parameters that share a factor of the learning rate."""

    pattern: str
    """As in the spec; empty for all that no pattern matches."""
    factor: float
    names: tuple[str, ...]
    """Of the parameters, in the order of the network."""


def groups(job: Job, model: nn.Module, trained: Sequence[str]) -> list[LrGroup]:
    """The groups of a job in the order of the spec, the rest of the parameters last, if there is any.

    A parameter belongs to the first pattern that matches it.

    Args:
        job: the spec.
        model: the network.
        trained: names of the parameters that are trained at any time of the run.

    Raises:
        SpecError: if a pattern matches no trained parameter, or only those of earlier patterns.
    """
    left, found, problems = list(trained), list[LrGroup](), list[Problem]()
    for pattern, factor in job.train.lr_groups.items():
        own = layer_names.matching(left, pattern)
        if not own:
            problems.append(_problem(job, model, pattern, trained, found))
        found.append(LrGroup(pattern, factor, tuple(own)))
        left = [name for name in left if name not in set(own)]
    if problems:
        raise SpecError(problems)
    return [*found, LrGroup("", 1.0, tuple(left))] if left else found


def _problem(job: Job, model: nn.Module, pattern: str, trained: Sequence[str], before: Sequence[LrGroup]) -> Problem:
    key = ("train", "lr_groups", pattern)
    if taken := layer_names.matching(trained, pattern):
        first = next(group.pattern for group in before if taken[0] in group.names)
        return job.problem(
            key,
            f"matches nothing that {first!r} has not matched before",
            "patterns in order: a parameter belongs to the first that matches it",
            f"write it before {first!r}, or remove it",
        )
    every = [name for name, _ in model.named_parameters()]
    frozen = layer_names.matching(every, pattern)
    given = f"{pattern!r} matches only frozen layers (model.freeze)" if frozen else f"no layer matches {pattern!r}"
    return layer_names.problem(job, key, given, pattern, trained)


def described(found: Sequence[LrGroup], model: nn.Module, rate: float) -> list[str]:
    """A line for each group: how many parameters, and their rate where that of the optimizer is `rate`."""
    sizes = {name: p.numel() for name, p in model.named_parameters()}
    return [
        f"{group.pattern or 'all others'}: {sum(map(sizes.__getitem__, group.names)):,} parameters at "
        f"{rate * group.factor:g}" + (f" ({group.factor:g} x {rate:g})" if group.factor != 1 else "")
        for group in found
    ]
