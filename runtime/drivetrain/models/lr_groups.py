"""Groups parameters by the factor of their learning rate (`train.lr_groups`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from drivetrain.errors import Problem, SpecError
from drivetrain.job import Job
from drivetrain.models import freeze


@dataclass(frozen=True)
class LrGroup:
    """Parameters that share a factor of the learning rate."""

    pattern: str
    """Pattern in the spec; empty for the parameters that no pattern matches."""
    factor: float
    names: tuple[str, ...]
    """Names of the parameters, in the order of the network."""


def make_groups(job: Job, model: nn.Module, trained: Sequence[str]) -> list[LrGroup]:
    """Make the groups of a job in the order of the spec; parameters that no pattern matches form the last group.

    A parameter of `trained`, the names trained in any epoch, belongs to the first pattern that matches it.

    Raises:
        SpecError: if a pattern matches no trained parameter, or only parameters of earlier patterns.
    """
    remaining, matched, problems = list(trained), list[LrGroup](), list[Problem]()
    for pattern, factor in job.train.lr_groups.items():
        names = freeze.match_layers(remaining, pattern)
        if not names:
            problems.append(_match_problem(job, model, pattern, trained, matched))
        matched.append(LrGroup(pattern, factor, tuple(names)))
        remaining = [name for name in remaining if name not in set(names)]
    if problems:
        raise SpecError(problems)
    return [*matched, LrGroup("", 1.0, tuple(remaining))] if remaining else matched


def _match_problem(
    job: Job, model: nn.Module, pattern: str, trained: Sequence[str], matched: Sequence[LrGroup]
) -> Problem:
    key = ("train", "lr_groups", pattern)
    names = freeze.match_layers(trained, pattern)
    if names:
        owner = next(group.pattern for group in matched if names[0] in group.names)
        return job.problem(
            key,
            f"matches only parameters that {owner!r} matches before it",
            "patterns in order: a parameter belongs to the first pattern that matches it",
            f"write it before {owner!r}, or remove it",
        )
    frozen = freeze.match_layers([name for name, _ in model.named_parameters()], pattern)
    description = f"no layer matches {pattern!r}"
    if frozen:
        description = f"{pattern!r} matches only frozen layers (model.freeze)"
    return freeze.unknown_layer_problem(job, key, description, pattern, trained)


def describe(matched: Sequence[LrGroup], model: nn.Module, rate: float) -> list[str]:
    """Return a line for each group with its number of parameters and its learning rate."""
    sizes = {name: p.numel() for name, p in model.named_parameters()}
    lines = []
    for group in matched:
        count = sum(sizes[name] for name in group.names)
        product = f" ({group.factor:g} x {rate:g})" if group.factor != 1 else ""
        lines.append(f"{group.pattern or 'all others'}: {count:,} parameters at {rate * group.factor:g}{product}")
    return lines
