"""Turns the arguments of `runtime.train` into a checked spec, whose errors point to the call."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from runtime.errors import Problem, SpecError
from runtime.job.document import Document
from runtime.job.embedded import EmbeddedJob
from runtime.job_spec import load as job_spec
from runtime.tuning import batch_size

OPTIMIZER = 'optimizer={"name": "adamw", "lr": 0.001}'


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
        raise SpecError([replace(each, key=each.key.removeprefix("train.")) for each in error.problems]) from None
    assert isinstance(job, EmbeddedJob)
    return job


def loss_of(loss: object) -> object:
    """A loss in the form of the spec; a callable by its name."""
    if isinstance(loss, str | Mapping):
        return loss
    return {"name": "own", "function": getattr(loss, "__qualname__", type(loss).__name__)}


def _unfit(settings: Mapping[str, object], place: str) -> Iterator[Problem]:
    """Arguments in the style of other libraries: objects, or a learning rate beside the optimizer."""
    for key, value in settings.items():
        if not isinstance(value, bool | int | float | str | Mapping | list | tuple | None):
            possible = OPTIMIZER if key == "optimizer" else "numbers, texts, lists and mappings, as in a spec"
            yield Problem(
                place,
                key,
                f"is an object of type {type(value).__name__}",
                possible,
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
