"""Splits the step time of a training on a CPU into forward, backward, update and compilation.

On a GPU calls return before the computation ends, so there the phase `train` is not split.
"""

from __future__ import annotations

import contextlib

from runtime.training.run import Run

PARTS = ("forward", "train", "optimizer", "compile")
"""The phases of a step. `train` holds all that is not listed: backward, loss, preprocessing, records."""


def install(run: Run) -> None:
    """Make the timer of a run split the time of its steps."""
    if run.device.type != "cpu":
        return
    run.configure_step(phase=StepPhases(run).phase)


class StepPhases:
    """Counts parts of a step as phases of their own during training; an evaluation stays one phase."""

    def __init__(self, run: Run) -> None:
        self.clock = run.clock
        self.compiles = run.plan.value("compile") is True

    def phase(self, name: str) -> contextlib.AbstractContextManager[None]:
        """The context of a part of a step, by its name."""
        if self.clock.open[-1:] != ["train"]:
            return contextlib.nullcontext()
        return self.clock.phase(self._name(name))

    def _name(self, name: str) -> str:
        """The phase to count; the first forward pass counts as compilation."""
        first, self.compiles = self.compiles and name == "forward", self.compiles and name != "forward"
        return "compile" if first else name
