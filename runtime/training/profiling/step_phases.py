"""Splits the step time of a training on a CPU into forward, backward, update and compilation.

On a GPU calls return before the computation ends, so there the phase `train` is not split.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from runtime.training.run import Run

PARTS = ("forward", "train", "optimizer", "compile")
"""The phases of a step. `train` holds all that is not listed: backward, loss, preprocessing, records."""


def install(run: Run) -> None:
    """Make the timer of a run split the time of its steps."""
    if run.device.type != "cpu":
        return
    timed = _Timed(run)
    run.step.outputs = timed.of("forward", run.step.outputs)  # type: ignore[method-assign]
    run.optimizer.step = timed.of("optimizer", run.optimizer.step)  # type: ignore[method-assign]


class _Timed:
    """Wraps functions as a phase of their own during training; an evaluation stays one phase."""

    def __init__(self, run: Run) -> None:
        self.clock = run.clock
        self.compiles = run.plan.value("compile") is True

    def of(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, timed."""

        def call(*arguments: object, **named: object) -> object:
            if self.clock.open[-1:] != ["train"]:
                return function(*arguments, **named)
            with self.clock.phase(self._name(name)):
                return function(*arguments, **named)

        return call

    def _name(self, name: str) -> str:
        """The phase to count; the first forward pass counts as compilation."""
        first, self.compiles = self.compiles and name == "forward", self.compiles and name != "forward"
        return "compile" if first else name
