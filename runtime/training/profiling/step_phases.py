"""Stopwatch: what of a training on a CPU is forward, backward, update and compiling.

A GPU computes after the call has returned, so there the phase `train` stays whole.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from runtime.training.run import Run

PARTS = ("forward", "train", "optimizer", "compile")
"""The phases of a step. What is neither forward nor update stays `train`: backward, loss, preparing, records."""


def install(run: Run) -> None:
    """Let the clock of a run tell the parts of its steps apart."""
    if run.device.type != "cpu":
        return
    timed = _Timed(run)
    run.step.outputs = timed.of("forward", run.step.outputs)  # type: ignore[method-assign]
    run.optimizer.step = timed.of("optimizer", run.optimizer.step)  # type: ignore[method-assign]


class _Timed:
    """Functions that count as a phase of their own while training; an evaluation stays one phase."""

    def __init__(self, run: Run) -> None:
        self.clock = run.clock
        self.compiles = run.plan.value("compile") is True

    def of(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, timed."""

        def call(*arguments: Any, **named: Any) -> Any:
            if self.clock.open[-1:] != ["train"]:
                return function(*arguments, **named)
            with self.clock.phase(self._name(name)):
                return function(*arguments, **named)

        return call

    def _name(self, name: str) -> str:
        """The first forward pass compiles."""
        first, self.compiles = self.compiles and name == "forward", self.compiles and name != "forward"
        return "compile" if first else name
