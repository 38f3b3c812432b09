"""Named moments of a run: tests kill it there, stop it or take something away. Nothing in the product listens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

Moment = Literal[
    # in the process that supervises
    "detect",
    "first attempt",
    "baselines",
    "report",
    # in a process that trains
    "load data",
    "assemble",
    "solve heads",
    "batch",
    "step",
    "gradients",
    "update",
    "evaluation batch",
    "record evaluation",
    "roll back",
    "trained",
    "write tensors",
    "tensors written",
    "commit checkpoint",
    "rename checkpoint",
    "remove checkpoints",
    "last checkpoint",
    "commit model",
    "tuner step",
    "compare variants",
    "size search step",
]

listener: Callable[..., None] | None = None
"""Is called with the name of each moment, and with the objects that the moment is about."""


def fault_point(moment: Moment, *subjects: object) -> None:
    """Tell the listener, if a test has set one, that this moment has come."""
    if listener is not None:
        listener(moment, *subjects)
