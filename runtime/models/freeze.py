"""Freezes parameters; frozen modules run in evaluation mode unless the job says otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatch

from torch import nn

from runtime.errors import Problem, SpecError
from runtime.job import Job
from runtime.job.model import Freeze


def freeze(model: nn.Module, spec: Freeze, job: Job) -> list[nn.Module]:
    """Turn off the gradients of what the spec names.

    Returns:
        The largest modules that are frozen as a whole; empty if frozen modules should stay in training mode.

    Raises:
        SpecError: if a pattern matches no parameter, or the network has no layers or embeddings to freeze.
    """
    for pattern in spec.names:
        found = [p for name, p in model.named_parameters() if fnmatch(name, pattern) or fnmatch(name, f"{pattern}.*")]
        if not found:
            known = ", ".join(name for name, _ in model.named_parameters())
            _refuse(
                job, "names", f"no parameter matches {pattern!r}", f"parameters: {known[:600]}", "change the pattern"
            )
        _stop(found)
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
