"""Turns the arguments of `drivetrain.train` into a checked spec, whose errors point to the call."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import nn

from drivetrain.data.custom.data_sources import DataSource
from drivetrain.data.labels import list_names
from drivetrain.errors import Problem, SpecError
from drivetrain.job.document import Document
from drivetrain.job.embedded import EmbeddedJob
from drivetrain.job_spec import load_job as job_spec
from drivetrain.supervisor.embedded_parts import Refusal
from drivetrain.tuning import batch_size

OTHER_NAMES = {
    "scheduler": "schedule=, which takes a scheduler of torch, too",
    "lr_scheduler": "schedule=, which takes a scheduler of torch, too",
    "callbacks": "on_step=, on_epoch= and on_end=",
    "optim": "optimizer=",
    "criterion": "loss=",
}
"""What other libraries call an argument, and its name here."""
SHORTHANDS = {"max_epochs": "epochs", "num_epochs": "epochs", "learning_rate": "lr"}
"""Names of other libraries for a number, which are taken."""
OPTIMIZER_SETTINGS = ("lr", "weight_decay")
"""Settings of the optimizer that a call may name beside it."""


def place_of(call: FrameType) -> str:
    """File, line and column of a call, given the frame that made it."""
    return f"{Path(call.f_code.co_filename).name}:{call.f_lineno}:1"


def spec_of(written: dict[str, Any], call_site: str) -> EmbeddedJob:
    """The spec of a call.

    Args:
        written: its settings, nested as in YAML.
        call_site: file, line and column of the call.

    Raises:
        SpecError: if a setting is wrong.
    """
    problems = list(_unfit(written["train"], call_site))
    if problems:
        raise SpecError(problems)

    def places(path: tuple[str, ...], value: object) -> dict[Any, str]:
        locations: dict[Any, str] = {path: call_site}
        for key, inner in value.items() if isinstance(value, Mapping) else ():
            locations |= places((*path, key), inner)
        return locations

    document = Document("drivetrain.train", written, places((), written))
    try:
        job = job_spec.check(document, EmbeddedJob)
        batch_size.refuse_auto(job, "drivetrain.train")
    except SpecError as error:
        # The user wrote `epochs=3`, not `train: {epochs: 3}`.
        raise as_call_error(error) from None
    assert isinstance(job, EmbeddedJob)
    return job


def expand_shorthands(
    optimizer: object, settings: Mapping[str, object], refuse: Refusal
) -> tuple[Any, dict[str, object]]:
    """The optimizer with the settings that a call names beside it, and the keywords that remain.

    Args:
        optimizer: of the call.
        settings: its keywords.
        refuse: makes errors.

    Raises:
        SpecError: if a setting is given twice, or the optimizer is an object, which has its own.
    """
    expanded: dict[str, object] = {}
    for key, value in settings.items():
        name = SHORTHANDS.get(key, key)
        if name in expanded:
            raise refuse(key, f"is {value}, and {name} is given, too", "one of the two", "remove one")
        expanded[name] = value
    beside = {name: expanded.pop(name) for name in OPTIMIZER_SETTINGS if name in expanded}
    if not beside:
        return optimizer, expanded
    description = {"name": optimizer} if isinstance(optimizer, str) else optimizer or {}
    if not isinstance(description, Mapping):
        raise refuse(
            next(iter(beside)),
            "is given, and the optimizer is one of your own",
            "the settings that your optimizer has",
            "set it where you make the optimizer",
        )
    if twice := [name for name in beside if name in description]:
        raise refuse(twice[0], f"is {beside[twice[0]]}, and in optimizer, too", "one of the two", "remove one")
    return {**description, **beside}, expanded


def settings_of(
    settings: Mapping[str, object], arguments: Mapping[str, object], loss: object, train: DataSource, refuse: Refusal
) -> dict[str, object]:
    """The `train:` part of the spec.

    Args:
        settings: keywords of the call.
        arguments: what the objects of the call say.
        loss: of the call.
        train: the training data; a DataLoader brings its batch size.
        refuse: makes errors.

    Raises:
        SpecError: if the batch size is given twice, and differs.
    """
    written = dict(settings) | dict(arguments) | ({} if loss is None else {"loss": loss_of(loss)})
    optimizer = arguments.get("optimizer")
    if settings.get("lr_groups") and isinstance(optimizer, Mapping) and optimizer.get("name") == "own":
        raise refuse(
            "lr_groups",
            "is given, and the optimizer is one of your own",
            "rates by layer of an optimizer that the runtime builds",
            "give the parameter groups of your optimizer their own lr",
        )
    if isinstance(optimizer, Mapping) and optimizer.get("name") == "own" and "clip_norm" not in settings:
        written["clip_norm"] = None
    size = train.batch_size
    if size is None:
        return written
    if settings.get("batch_size", size) != size:
        raise refuse(
            "batch_size",
            f"is {settings['batch_size']}, and that of the DataLoader is {size}",
            "one batch size",
            "leave it out, or give the dataset instead of the DataLoader",
        )
    return written | {"batch_size": size}


def limits_of(limits: Mapping[str, object], gpus: object, refuse: Refusal) -> dict[str, object]:
    """The `limits:` part of the spec, with the GPUs of the keyword.

    Raises:
        SpecError: if they are given twice.
    """
    if gpus is None:
        return dict(limits)
    if "gpus" in limits:
        raise refuse("gpus", f"is {gpus}, and limits has gpus, too", "one of the two", "remove one")
    return dict(limits) | {"gpus": gpus if isinstance(gpus, str) or not isinstance(gpus, Iterable) else list(gpus)}


def translate_advice(action: str) -> str:
    """Translate an advice of the command line into the words of a call."""
    replacements = {
        "--new": "new=True",
        "--extend": "extend",
        "--restart-schedule": "restart_schedule=True",
        "--set train.schedule=constant": 'schedule="constant"',
        "--set train.optimizer.lr=": "optimizer.lr=",
        "--set train.": "",
    }
    for before, now in replacements.items():
        action = action.replace(before, now)
    return action


def as_call_error(error: SpecError) -> SpecError:
    """Return an error about keys of the spec as one about keywords of the call."""
    if not error.problems:
        return SpecError(
            translate_advice(error.given), translate_advice(error.possible), translate_advice(error.action)
        )
    return SpecError(
        [
            replace(problem, key=problem.key.removeprefix("train."), action=translate_advice(problem.action))
            for problem in error.problems
        ]
    )


def loss_of(loss: object) -> object:
    """A loss in the form of the spec; a callable by its name."""
    if isinstance(loss, str | Mapping):
        return loss
    return {"name": "own", "function": getattr(loss, "__qualname__", type(loss).__name__)}


def _unfit(settings: Mapping[str, object], call_site: str) -> Iterator[Problem]:
    """Arguments in the style of other libraries."""
    for key, value in settings.items():
        if not isinstance(value, bool | int | float | str | Mapping | list | tuple | None):
            yield Problem(
                call_site,
                key,
                f"is an object of type {type(value).__name__}",
                "numbers, texts, lists and mappings, as in a spec",
                "describe it with plain values, which can be stored and resumed",
            )
        elif key in OTHER_NAMES:
            yield Problem(call_site, key, "unknown key", OTHER_NAMES[key], "use that name")


def list_evaluated(model: object) -> tuple[str, ...]:
    """The layers that a program has put into evaluation mode, if the network itself is in training mode."""
    if not isinstance(model, nn.Module) or not model.training:
        return ()
    return tuple(name for name, layer in model.named_modules() if not layer.training)


def list_mode_events(model: object, *, unclipped: bool) -> Iterator[tuple[str, str]]:
    """What the training does with the objects and modes of a call, as the kind and the text of events.

    Args:
        model: of the call, before anything has changed its modes.
        unclipped: whether the optimizer is the program's, and gradients are not clipped for that.
    """
    if any(torch.is_autocast_enabled(kind) for kind in ("cpu", "cuda")):
        text = 'the autocast around the call does not hold within it; optimize={"precision": "bf16"} asks for bf16'
        yield "precision", text
    if unclipped:
        yield "optimizer", "your own, so its gradients are not clipped; clip_norm=1.0 clips them"
    if isinstance(model, nn.Module):
        yield from (("model", text) for text in _modes(model))


def _modes(model: nn.Module) -> Iterator[str]:
    if not model.training:
        yield "is in evaluation mode, and trained in training mode; .train() before the call, and .eval() of layers, choose"
    if names := list_evaluated(model):
        yield f"{list_names(names, 3)} in evaluation mode, as the program has set it"
    counting = [
        name
        for name, layer in model.named_modules()
        if isinstance(layer, nn.modules.batchnorm._BatchNorm)
        and (layer.training or not model.training)
        and any(True for _ in layer.parameters())
        and not any(p.requires_grad for p in layer.parameters())
    ]
    if counting:
        yield (
            f"frozen, and still in training mode: {list_names(counting, 3)} normalizes by each batch; .eval() before the call "
            "keeps it as it is"
        )
