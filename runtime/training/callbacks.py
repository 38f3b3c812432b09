"""Functions of a Python program that a training calls: after a step, after an evaluation, at the end."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from runtime.data.custom.user_errors import blamed
from runtime.errors import UserCodeError

Callback = Callable[["TrainingInfo"], object]


class StopTraining(Exception):
    """Raised by a callback: the training ends after an evaluation, as if that had been its last epoch."""


@dataclass(frozen=True)
class TrainingInfo:
    """What a callback is told. The values are copies: changing the training is not possible through them."""

    folder: Path
    """The run folder."""
    step: int
    """Optimizer steps that are done."""
    steps: int
    """Optimizer steps of the whole run, if nothing ends it early."""
    epoch: int
    """The epoch that this is about, from 1."""
    epochs: int
    """Epochs of the whole run."""
    loss: float = math.nan
    """on_step: the loss of the batch before the update."""
    lr: float = math.nan
    """on_step: the learning rate of the first parameter group."""
    grad_norm: float = math.nan
    """on_step: the norm of the gradients before clipping."""
    skipped: bool = False
    """on_step: whether the update was skipped, because loss or gradients were not finite."""
    metrics: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    """on_epoch: of this evaluation; on_end: of the best one."""
    best: bool = False
    """on_epoch: whether this evaluation is the best so far."""
    reason: str = ""
    """on_end: why the training ended."""


@dataclass(frozen=True)
class Callbacks:
    """The callbacks of a training; None for those that it does not have."""

    on_step: Callback | None = None
    """After every optimizer step."""
    on_epoch: Callback | None = None
    """After every evaluation."""
    on_end: Callback | None = None
    """After the run has finished, with its report; not after a stop or a failure."""

    def call(self, name: str, info: TrainingInfo) -> str | None:
        """Call one; returns why it ends the training, or None.

        Raises:
            UserCodeError: if it raises.
        """
        callback: Callback | None = getattr(self, name)
        if callback is None:
            return None
        try:
            with blamed(lambda told, do: UserCodeError(f"{name} raised {told}", "", do)):
                callback(info)
        except UserCodeError as error:
            if isinstance(error.__cause__, StopTraining):
                return f"{name}: {error.__cause__}".removesuffix(": ")
            raise
        return None
