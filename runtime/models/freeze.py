"""Freezes parameters; frozen modules run in evaluation mode unless the job says otherwise."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from torch import nn

from runtime.data.labels import listed
from runtime.errors import Problem, SpecError
from runtime.job import Job
from runtime.job.model import Freeze
from runtime.models import layer_names


def freeze(model: nn.Module, spec: Freeze, job: Job) -> list[nn.Module]:
    """Turn off the gradients of what the spec names.

    Returns:
        The largest modules that are frozen as a whole; empty if frozen modules should stay in training mode.

    Raises:
        SpecError: if a pattern matches no parameter, or the network has no layers or embeddings to freeze.
    """
    parameters = dict(model.named_parameters())
    for number, pattern in enumerate(spec.names):
        found = layer_names.matching(parameters, pattern)
        if not found:
            key, given = ("model", "freeze", "names", number), f"no layer matches {pattern!r}"
            raise SpecError([layer_names.problem(job, key, given, pattern, parameters)])
        _stop([parameters[name] for name in found])
    if spec.embeddings:
        _stop(list(_part(model, "embeddings", job).parameters()))
    if spec.layers:
        layers = _part(model, "layers", job)
        count = len(list(layers.children()))
        if spec.layers > count:
            _refuse(job, "layers", f"is {spec.layers}", f"the network has {count} layers", "freeze fewer")
        for layer in list(layers.children())[: spec.layers]:
            _stop(list(layer.parameters()))
    if not any(p.requires_grad for p in model.parameters()):
        _refuse(job, "", "freezes every parameter", "at least one trainable parameter", "freeze less")
    return [] if spec.train_mode else list(frozen_parts(model))


def random_and_frozen(model: nn.Module, anew: Collection[str], later: Collection[str]) -> list[str]:
    """Notes on frozen parameters with new random weights.

    Args:
        model: the network, frozen as in the first epoch.
        anew: parameters with random weights.
        later: frozen parameters that are trained later.
    """
    frozen = [name for name, p in model.named_parameters() if name in anew and not p.requires_grad]
    stuck, late = ([name for name in frozen if (name in later) is learns] for learns in (False, True))
    ends = ((stuck, "which never learn"), (late, "which learn only when they are unfrozen"))
    return [f"model.freeze freezes {listed(names, 6)} with new random weights, {end}" for names, end in ends if names]


def _part(model: nn.Module, name: str, job: Job) -> nn.Module:
    part = getattr(model, name, None)
    if not isinstance(part, nn.Module):
        _refuse(job, name, f"this network has no {name}", "name patterns", "use `names: [pattern]` instead")
    assert isinstance(part, nn.Module)
    return part


def _refuse(job: Job, key: str, given: str, possible: str, action: str) -> None:
    path = tuple(part for part in ("model", "freeze", key) if part)
    raise SpecError([Problem(job.document.place(path), ".".join(path), given, possible, action)])


def _stop(parameters: list[nn.Parameter]) -> None:
    for parameter in parameters:
        parameter.requires_grad_(False)


def frozen_parts(module: nn.Module) -> Iterator[nn.Module]:
    """The largest modules without a trainable parameter."""
    parameters = list(module.parameters())
    if parameters and not any(p.requires_grad for p in parameters):
        yield module
        return
    for child in module.children():
        yield from frozen_parts(child)
