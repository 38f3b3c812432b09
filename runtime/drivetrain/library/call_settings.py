"""Turns the arguments of `drivetrain.train` into a checked spec, whose errors point to the call."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any, cast

import torch
from torch import nn

from drivetrain.data.custom.data_sources import DataSource
from drivetrain.data.notes import list_names
from drivetrain.errors import Problem, SpecError
from drivetrain.job.document import Document
from drivetrain.job.embedded import EmbeddedJob
from drivetrain.job_spec import load_job as job_spec
from drivetrain.library.components import Refusal
from drivetrain.tuning import batch_size

FOREIGN_NAMES = {
    "scheduler": "schedule=, which takes a scheduler of torch, too",
    "lr_scheduler": "schedule=, which takes a scheduler of torch, too",
    "callbacks": "on_step=, on_epoch= and on_end=",
    "optim": "optimizer=",
    "criterion": "loss=",
}
"""Refused arguments of other libraries, and the argument of this library that the error names instead."""
ALIASES = {"max_epochs": "epochs", "num_epochs": "epochs", "learning_rate": "lr"}
"""Accepted arguments of other libraries, whose numbers have the same meaning."""
OPTIMIZER_SETTINGS = ("lr", "weight_decay")
"""Settings of the optimizer that a call may also give as separate arguments: `optimizer="adamw", lr=0.001`."""


def locate(call: FrameType) -> str:
    """Return file, line and column of a call from the frame that made it."""
    return f"{Path(call.f_code.co_filename).name}:{call.f_lineno}:1"


def build_job(spec_keys: dict[str, Any], call_site: str) -> EmbeddedJob:
    """Build the checked job that the arguments of a call describe.

    Args:
        spec_keys: settings of the call, nested as in YAML.
        call_site: file, line and column of the call.

    Raises:
        SpecError: if a setting is wrong.
    """
    problems = list(_find_unusable_settings(spec_keys["train"], call_site))
    if problems:
        raise SpecError(problems)

    def locate_keys(path: tuple[str, ...], value: object) -> dict[Any, str]:
        locations: dict[Any, str] = {path: call_site}
        if isinstance(value, Mapping):
            for key, child in value.items():
                locations |= locate_keys((*path, key), child)
        return locations

    # There is no YAML file, so the position of every key is the call.
    document = Document("drivetrain.train", spec_keys, locate_keys((), spec_keys))
    try:
        job = cast(EmbeddedJob, job_spec.check(document, EmbeddedJob))
        batch_size.refuse_auto(job, "drivetrain.train")
    except SpecError as error:
        # The user wrote `epochs=3`, not `train: {epochs: 3}`.
        raise as_call_error(error) from None
    return job


def expand_shorthands(
    optimizer: object, settings: Mapping[str, object], refuse: Refusal
) -> tuple[Any, dict[str, object]]:
    """Move `lr` and `weight_decay` into the description of the optimizer, and translate names of other libraries.

    Args:
        optimizer: optimizer argument of the call.
        settings: keyword arguments of the call.
        refuse: function that makes the error of an argument.

    Returns:
        The optimizer with these settings, and the remaining keyword arguments.

    Raises:
        SpecError: if a setting is given twice, or if the optimizer is an object with its own settings.
    """
    expanded: dict[str, object] = {}
    for key, value in settings.items():
        name = ALIASES.get(key, key)
        if name in expanded:
            raise refuse(key, f"is {value}, and {name} is set, too", "one of the two", "remove one")
        expanded[name] = value
    optimizer_settings = {name: expanded.pop(name) for name in OPTIMIZER_SETTINGS if name in expanded}
    if not optimizer_settings:
        return optimizer, expanded
    description = {"name": optimizer} if isinstance(optimizer, str) else optimizer or {}
    if not isinstance(description, Mapping):
        raise refuse(
            next(iter(optimizer_settings)),
            "is set, and the optimizer is your own object",
            "the settings that your optimizer has",
            "set it where you create the optimizer",
        )
    for name, value in optimizer_settings.items():
        if name in description:
            raise refuse(name, f"is {value}, and in optimizer, too", "one of the two", "remove one")
    return {**description, **optimizer_settings}, expanded


def build_train_settings(
    settings: Mapping[str, object], arguments: Mapping[str, object], loss: object, train: DataSource, refuse: Refusal
) -> dict[str, object]:
    """Build the `train:` part of the spec.

    Args:
        settings: keyword arguments of the call.
        arguments: keys of `train:` that describe the objects of the call, such as its optimizer.
        loss: loss of the call.
        train: training data; a DataLoader sets the batch size.
        refuse: function that makes the error of an argument.

    Raises:
        SpecError: if two different batch sizes are given.
    """
    train_keys = dict(settings) | dict(arguments)
    if isinstance(loss, str | Mapping):
        train_keys["loss"] = loss
    elif loss is not None:
        train_keys["loss"] = {"name": "own", "function": getattr(loss, "__qualname__", type(loss).__name__)}
    optimizer = arguments.get("optimizer")
    if settings.get("lr_groups") and isinstance(optimizer, Mapping) and optimizer.get("name") == "own":
        raise refuse(
            "lr_groups",
            "is set, and the optimizer is your own object",
            "rates by layer of an optimizer that the runtime builds",
            "give the parameter groups of your optimizer their own lr",
        )
    if isinstance(optimizer, Mapping) and optimizer.get("name") == "own" and "clip_norm" not in settings:
        # The program chose its own optimizer, so the runtime's default must not change its gradients.
        train_keys["clip_norm"] = None
    size = train.batch_size
    if size is None:
        return train_keys
    if settings.get("batch_size", size) != size:
        raise refuse(
            "batch_size",
            f"is {settings['batch_size']}, and the DataLoader has {size}",
            "one batch size",
            "remove it, or pass the dataset instead of the DataLoader",
        )
    return train_keys | {"batch_size": size}


def build_limits(limits: Mapping[str, object], gpus: object, refuse: Refusal) -> dict[str, object]:
    """Build the `limits:` part of the spec with the GPUs of the argument `gpus`.

    Raises:
        SpecError: if the GPUs are given twice.
    """
    if gpus is None:
        return dict(limits)
    if "gpus" in limits:
        raise refuse("gpus", f"is {gpus}, and limits has gpus, too", "one of the two", "remove one")
    if isinstance(gpus, Iterable) and not isinstance(gpus, str):
        gpus = list(gpus)
    return dict(limits) | {"gpus": gpus}


def translate_advice(action: str) -> str:
    """Replace options of the command line in the advice of an error message by arguments of a call."""
    return action.replace("--new", "new=True").replace("--extend", "extend")


def as_call_error(error: SpecError) -> SpecError:
    """Turn an error about keys of the spec into an error about arguments of the call."""
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


def _find_unusable_settings(settings: Mapping[str, object], call_site: str) -> Iterator[Problem]:
    """Yield a problem for every setting that is an object or has the name of another library's argument."""
    for key, value in settings.items():
        if not isinstance(value, bool | int | float | str | Mapping | list | tuple | None):
            yield Problem(
                call_site,
                key,
                f"is an object of type {type(value).__name__}",
                "numbers, texts, lists and mappings, as in a spec",
                "describe it with plain values, which can be stored and resumed",
            )
        elif key in FOREIGN_NAMES:
            yield Problem(call_site, key, "unknown key", FOREIGN_NAMES[key], "use that name")


def list_layers_in_eval_mode(model: nn.Module) -> tuple[str, ...]:
    """List the layers that a program has put into evaluation mode; none if the whole network is in evaluation mode."""
    return tuple(name for name, layer in model.named_modules() if not layer.training) if model.training else ()


def list_mode_events(model: nn.Module, *, unclipped: bool) -> Iterator[tuple[str, str]]:
    """Yield kind and text of events about the treatment of the program's optimizer, autocast and module modes.

    Args:
        model: network of the call, before its modes are changed.
        unclipped: whether gradients are not clipped because the optimizer is the program's own.
    """
    if any(torch.is_autocast_enabled(kind) for kind in ("cpu", "cuda")):
        text = 'the autocast block around the call has no effect; optimize={"precision": "bf16"} trains in bf16'
        yield "precision", text
    if unclipped:
        yield "optimizer", "your own object, so gradients are not clipped; clip_norm=1.0 clips them"
    yield from (("model", text) for text in _describe_modes(model))


def _describe_modes(model: nn.Module) -> Iterator[str]:
    """Describe the modules that keep the program's mode, and the frozen modules that still depend on each batch."""
    if not model.training:
        yield "is in evaluation mode, but is trained in training mode; call .train(), and .eval() on layers, to choose the modes"
    names = list_layers_in_eval_mode(model)
    if names:
        yield f"{list_names(names, 3)} in evaluation mode, as set by the program"
    # In training mode, a layer with frozen weights still normalizes by the batch and updates its running statistics.
    frozen_norms = [
        name
        for name, layer in model.named_modules()
        if isinstance(layer, nn.modules.batchnorm._BatchNorm)
        and (layer.training or not model.training)
        and any(True for _ in layer.parameters())
        and not any(p.requires_grad for p in layer.parameters())
    ]
    if frozen_norms:
        yield (
            f"frozen, but still in training mode: {list_names(frozen_norms, 3)} normalizes by each batch; .eval() before the call "
            "keeps its statistics"
        )
