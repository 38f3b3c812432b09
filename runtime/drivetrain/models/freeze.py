"""Freezes parameters (`model.freeze`), some of them only until a later epoch (`model.unfreeze`).

Frozen modules run in evaluation mode unless the job says otherwise.
"""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from typing import NoReturn

from torch import nn

from drivetrain.data.notes import list_names
from drivetrain.errors import Problem, SpecError
from drivetrain.job import Job
from drivetrain.job.formatting import Path as Key
from drivetrain.job.formatting import dot_key
from drivetrain.job.model import Freeze, Unfreeze

MAX_LISTED_CHARACTERS = 600
"""Largest number of characters of the list of layers in a message."""


def match_layers(names: Iterable[str], pattern: str) -> list[str]:
    """Return the parameters whose name, or the name of a layer that contains them, matches a pattern."""
    return [name for name in names if fnmatch(name, pattern) or fnmatch(name, f"{pattern}.*")]


def list_layers(names: Iterable[str]) -> list[str]:
    """List the layers that contain these parameters, in order; a parameter outside of layers counts as a layer."""
    return list(dict.fromkeys(name.rpartition(".")[0] or name for name in names))


def list_modules_above(names: Iterable[str]) -> list[str]:
    """List the names of the layers that contain these parameters, and of all modules around them."""
    paths = [name.split(".")[:depth] for name in list_layers(names) for depth in range(1, name.count(".") + 2)]
    return list(dict.fromkeys(map(".".join, paths)))


def unknown_layer_problem(job: Job, key: Key, description: str, pattern: str, names: Collection[str]) -> Problem:
    """Return the problem that a pattern matches nothing, with the layers of the parameters `names` as alternatives."""
    listed = ", ".join(list_layers(names))
    close = difflib.get_close_matches(pattern.rstrip("*."), list_modules_above(names), n=1, cutoff=0.5)
    return Problem(
        job.document.place(key),
        dot_key(key),
        description,
        f"layers: {listed[:MAX_LISTED_CHARACTERS]}{'...' if len(listed) > MAX_LISTED_CHARACTERS else ''}",
        f'did you mean "{close[0]}"?' if close else "name one of them, or several with a pattern such as `features*`",
    )


def freeze(model: nn.Module, spec: Freeze, job: Job) -> list[nn.Module]:
    """Turn off the gradients of the parameters named in the spec.

    Returns:
        The largest modules that are entirely frozen; empty if frozen modules should stay in training mode.

    Raises:
        SpecError: if a pattern matches no parameter, or the network has no layers or embeddings to freeze.
    """
    parameters = dict(model.named_parameters())
    if spec.body:
        outputs = {id(parameter) for parameter in _find_output_layer(model, job).parameters()}
        _freeze_parameters([parameter for parameter in parameters.values() if id(parameter) not in outputs])
    for number, pattern in enumerate(spec.names):
        matching = match_layers(parameters, pattern)
        if not matching:
            key, description = ("model", "freeze", "names", number), f"no layer matches {pattern!r}"
            raise SpecError(unknown_layer_problem(job, key, description, pattern, parameters))
        _freeze_parameters([parameters[name] for name in matching])
    if spec.embeddings:
        # Numbers of tables have separate embeddings, even in a network without categories.
        number_embeddings = getattr(model, "number_embeddings", None)
        if isinstance(number_embeddings, nn.Module):
            _freeze_parameters(list(number_embeddings.parameters()))
        if not isinstance(number_embeddings, nn.Module) or hasattr(model, "embeddings"):
            _freeze_parameters(list(_get_module(model, "embeddings", job).parameters()))
    if spec.layers:
        layers = _get_module(model, "layers", job)
        count = len(list(layers.children()))
        if spec.layers > count:
            _refuse(job, "layers", f"is {spec.layers}", f"the network has {count} layers", "freeze fewer")
        for layer in list(layers.children())[: spec.layers]:
            _freeze_parameters(list(layer.parameters()))
    if not any(p.requires_grad for p in model.parameters()):
        _refuse(job, "", "freezes every parameter", "at least one trainable parameter", "freeze less")
    return [] if spec.train_mode else list(find_frozen_parts(model))


def note_random_frozen(model: nn.Module, random_names: Collection[str], later: Collection[str]) -> list[str]:
    """Return notes on frozen parameters with new random weights; the names in `later` are trained later."""
    frozen = [name for name, p in model.named_parameters() if name in random_names and not p.requires_grad]
    never_trained = [name for name in frozen if name not in later]
    trained_later = [name for name in frozen if name in later]
    notes = []
    for names, effect in (
        (never_trained, "which never learn"),
        (trained_later, "which learn only when they are unfrozen"),
    ):
        if names:
            notes.append(f"model.freeze freezes {list_names(names, 6)} with new random weights, {effect}")
    return notes


def _find_output_layer(model: nn.Module, job: Job) -> nn.Module:
    """Find the layer, or the list of layers, that computes the outputs."""
    # timm's networks have this method; our networks have one of the two attributes.
    get_classifier = getattr(model, "get_classifier", None)
    candidates = [getattr(model, "heads", None), getattr(model, "classifier", None)]
    if callable(get_classifier):
        candidates.insert(0, get_classifier())
    for layer in candidates:
        if isinstance(layer, nn.Module) and list(layer.parameters()):
            return layer
    description = "this network does not say which layers are its outputs"
    _refuse(job, "body", description, "name patterns", "use `names: [pattern]` instead")


def _get_module(model: nn.Module, name: str, job: Job) -> nn.Module:
    module = getattr(model, name, None)
    if not isinstance(module, nn.Module):
        _refuse(job, name, f"this network has no {name}", "name patterns", "use `names: [pattern]` instead")
    return module


def _refuse(job: Job, key: str, description: str, possible: str, action: str) -> NoReturn:
    path = ("model", "freeze", key) if key else ("model", "freeze")
    raise SpecError(Problem(job.document.place(path), ".".join(path), description, possible, action))


def _freeze_parameters(parameters: list[nn.Parameter]) -> None:
    for parameter in parameters:
        parameter.requires_grad_(False)


def find_frozen_parts(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the largest modules without a trainable parameter."""
    parameters = list(module.parameters())
    if parameters and not any(p.requires_grad for p in parameters):
        yield module
        return
    for child in module.children():
        yield from find_frozen_parts(child)


@dataclass(frozen=True)
class Unfreezing:
    """First trained epochs of frozen parameters; epochs are counted from 0."""

    first_epochs: Mapping[str, int] = field(default_factory=dict)
    """First epoch that trains a parameter, by the parameter's name."""

    @property
    def epochs(self) -> list[int]:
        """Epochs that begin with unfreezing parameters, in order."""
        return sorted(set(self.first_epochs.values()))

    @property
    def last(self) -> int:
        """First epoch that trains all of the parameters; 0 if there are none."""
        return max(self.first_epochs.values(), default=0)

    def stage(self, epoch: int) -> int:
        """Return the number of unfreezings up to the beginning of an epoch."""
        return sum(unfrozen_at <= epoch for unfrozen_at in self.epochs)

    def names(self, epoch: int) -> list[str]:
        """Return the parameters that are unfrozen exactly at the beginning of this epoch."""
        return [name for name, first_epoch in self.first_epochs.items() if first_epoch == epoch]

    def apply(self, model: nn.Module, epoch: int) -> None:
        """Freeze and unfreeze the parameters of a network for an epoch."""
        for name, parameter in model.named_parameters():
            if name in self.first_epochs:
                parameter.requires_grad_(self.first_epochs[name] <= epoch)

    @contextlib.contextmanager
    def during(self, model: nn.Module, epoch: int) -> Iterator[None]:
        """Freeze and unfreeze parameters as in an epoch within the block; restore them at its end."""
        earlier = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
        self.apply(model, epoch)
        try:
            yield
        finally:
            for parameter, trained in earlier:
                parameter.requires_grad_(trained)


def find_unfreezing(model: nn.Module, spec: Sequence[Unfreeze], job: Job) -> Unfreezing:
    """Find the parameters that the spec unfreezes; the network must be frozen as in the first epoch.

    Raises:
        SpecError: if a pattern matches no parameter, or no parameter that is still frozen.
    """
    frozen = [name for name, p in model.named_parameters() if not p.requires_grad]
    first_epochs: dict[str, int] = {}
    problems: list[Problem] = []
    for number, entry in sorted(enumerate(spec), key=lambda pair: pair[1].epoch):
        for position, pattern in enumerate(entry.names):
            matching = [name for name in match_layers(frozen, pattern) if name not in first_epochs]
            if not matching:
                key = ("model", "unfreeze", number, "names", position)
                description = _describe_unmatched(model, pattern, first_epochs)
                remaining = [name for name in frozen if name not in first_epochs]
                problems.append(unknown_layer_problem(job, key, description, pattern, remaining))
            first_epochs |= dict.fromkeys(matching, entry.epoch - 1)
    if problems:
        raise SpecError(problems)
    order = [name for name, _ in model.named_parameters() if name in first_epochs]
    return Unfreezing({name: first_epochs[name] for name in order})


def _describe_unmatched(model: nn.Module, pattern: str, first_epochs: Mapping[str, int]) -> str:
    unfrozen = match_layers(first_epochs, pattern)
    if unfrozen:
        return f"{pattern!r} is already unfrozen in epoch {first_epochs[unfrozen[0]] + 1}"
    matching = match_layers([name for name, _ in model.named_parameters()], pattern)
    return f"{pattern!r} is not frozen (model.freeze)" if matching else f"no layer matches {pattern!r}"


def train_skip_first(model: nn.Module, later: Unfreezing) -> Unfreezing:
    """Freeze all but the linear model of `model.skip` in the first epoch; `later` epochs unfreeze other layers."""
    delayed = {name: p for name, p in model.named_parameters() if p.requires_grad and not name.startswith("skip.")}
    for parameter in delayed.values():
        parameter.requires_grad_(False)
    return Unfreezing({**dict.fromkeys(delayed, 1), **later.first_epochs})


def note_unreached(unfreezing: Unfreezing, job: Job, samples: int) -> list[str]:
    """Return a note if `train.steps` ends the run before an unfreezing; `samples` is the number of training samples."""
    steps, epoch_steps = job.train.steps, -(-samples // job.train.batch)
    if steps is None or unfreezing.last * epoch_steps < steps:
        return []
    unreached = next(epoch for epoch in unfreezing.epochs if epoch * epoch_steps >= steps)
    return [
        f"train.steps ends the run after {steps:,} steps, before epoch {unreached + 1}, from which more layers would be trained"
    ]
