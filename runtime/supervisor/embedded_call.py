"""Turns the arguments of `runtime.train` into a checked spec, whose errors point to the call."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

from runtime.data.custom.data_sources import DataSource
from runtime.errors import Problem, SpecError
from runtime.job.document import Document
from runtime.job.embedded import EmbeddedJob
from runtime.job_spec import load as job_spec
from runtime.supervisor.embedded_parts import Refusal
from runtime.tuning import batch_size

OTHER_NAMES = {
    "scheduler": "schedule=, which takes a scheduler of torch, too",
    "lr_scheduler": "schedule=, which takes a scheduler of torch, too",
    "callbacks": "on_step=, on_epoch= and on_end=",
    "max_epochs": "epochs=",
    "num_epochs": "epochs=",
    "optim": "optimizer=",
    "criterion": "loss=",
}
"""What other libraries call an argument, and its name here."""
OPTIMIZER = 'optimizer={"name": "adamw", "lr": 0.001}'


def place_of(call: FrameType) -> str:
    """File, line and column of a call, given the frame that made it."""
    return f"{Path(call.f_code.co_filename).name}:{call.f_lineno}:1"


def spec_of(written: dict[str, Any], place: str) -> EmbeddedJob:
    """The spec of a call.

    Args:
        written: its settings, nested as in YAML.
        place: file, line and column of the call.

    Raises:
        SpecError: if a setting is wrong.
    """
    problems = list(_unfit(written["train"], place))
    if problems:
        raise SpecError(problems)

    def places(path: tuple[str, ...], value: object) -> dict[Any, str]:
        found: dict[Any, str] = {path: place}
        for key, inner in value.items() if isinstance(value, Mapping) else ():
            found |= places((*path, key), inner)
        return found

    document = Document("runtime.train", written, places((), written))
    try:
        job = job_spec.check(document, EmbeddedJob)
        batch_size.fixed(job, "runtime.train")
    except SpecError as error:
        # The user wrote `epochs=3`, not `train: {epochs: 3}`.
        raise of_call(error) from None
    assert isinstance(job, EmbeddedJob)
    return job


def settings_of(
    settings: Mapping[str, object], given: Mapping[str, object], loss: object, train: DataSource, refuse: Refusal
) -> dict[str, object]:
    """The `train:` part of the spec.

    Args:
        settings: keywords of the call.
        given: what the objects of the call say.
        loss: of the call.
        train: the training data; a DataLoader brings its batch size.
        refuse: makes errors.

    Raises:
        SpecError: if the batch size is given twice, and differs.
    """
    found = dict(settings) | dict(given) | ({} if loss is None else {"loss": loss_of(loss)})
    own = given.get("optimizer")
    if settings.get("lr_groups") and isinstance(own, Mapping) and own.get("name") == "own":
        raise refuse(
            "lr_groups",
            "is given, and the optimizer is one of your own",
            "rates by layer of an optimizer that the runtime builds",
            "give the parameter groups of your optimizer their own lr",
        )
    if isinstance(own, Mapping) and own.get("name") == "own" and "clip_norm" not in settings:
        found["clip_norm"] = None
    size = train.batch_size
    if size is None:
        return found
    if settings.get("batch_size", size) != size:
        raise refuse(
            "batch_size",
            f"is {settings['batch_size']}, and that of the DataLoader is {size}",
            "one batch size",
            "leave it out, or give the dataset instead of the DataLoader",
        )
    return found | {"batch_size": size}


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


def in_python(action: str) -> str:
    """An advice of the command line in the words of a call."""
    words = {
        "--new": "new=True",
        "--extend": "extend",
        "--restart-schedule": "restart_schedule=True",
        "--set train.schedule=constant": 'schedule="constant"',
        "--set train.optimizer.lr=": "optimizer.lr=",
        "--set train.": "",
    }
    for before, now in words.items():
        action = action.replace(before, now)
    return action


def of_call(error: SpecError) -> SpecError:
    """An error about a key of the spec as one about a keyword of the call."""
    if not error.problems:
        return SpecError(in_python(error.given), in_python(error.possible), in_python(error.action))
    return SpecError(
        [replace(each, key=each.key.removeprefix("train."), action=in_python(each.action)) for each in error.problems]
    )


def loss_of(loss: object) -> object:
    """A loss in the form of the spec; a callable by its name."""
    if isinstance(loss, str | Mapping):
        return loss
    return {"name": "own", "function": getattr(loss, "__qualname__", type(loss).__name__)}


def _unfit(settings: Mapping[str, object], place: str) -> Iterator[Problem]:
    """Arguments in the style of other libraries: objects, or a learning rate beside the optimizer."""
    for key, value in settings.items():
        if not isinstance(value, bool | int | float | str | Mapping | list | tuple | None):
            yield Problem(
                place,
                key,
                f"is an object of type {type(value).__name__}",
                "numbers, texts, lists and mappings, as in a spec",
                "describe it with plain values, which can be stored and resumed",
            )
        elif key in ("lr", "learning_rate"):
            yield Problem(
                place,
                key,
                "unknown key",
                "the learning rate is a setting of the optimizer",
                f"write {OPTIMIZER.replace('0.001', str(value))}",
            )
        elif key in OTHER_NAMES:
            yield Problem(place, key, "unknown key", OTHER_NAMES[key], "use that name")
