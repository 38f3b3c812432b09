"""Measures the time of a training by phase of a step, and traces a few steps.

Nothing here changes the computation, so the run stays bit-identical.
"""

from __future__ import annotations

import contextlib
from typing import Any

from drivetrain.training.run import Run

TRACE_FILE = "trace.json.gz"
WARMUP_STEPS = 10
"""Number of steps before profiling: the first steps load kernels, fill caches and compile."""
PROFILED_STEPS = 5
"""Number of profiled steps."""


class Profiler:
    """Counts steps, and profiles some of them."""

    def __init__(self, run: Run) -> None:
        self.run, self.device = run, run.device.type
        self.steps_done = 0
        self.profile: Any = None
        # A short run is profiled from its second step on.
        self.warmup_steps = min(WARMUP_STEPS, max(1, run.total_steps - run.counters.step - PROFILED_STEPS))

    def step(self) -> None:
        """Count a step, and start or end profiling; must be called after every step."""
        self.steps_done += 1
        if self.steps_done == self.warmup_steps:
            from torch.profiler import ProfilerActivity, profile

            kinds = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if self.device == "cuda" else [])
            self.profile = profile(activities=kinds)
            self.profile.start()
        elif self.steps_done == self.warmup_steps + PROFILED_STEPS:
            self.close()

    def close(self) -> None:
        """Stop profiling if it is active, and write the trace; a failure is only recorded as an event."""
        if self.profile is None:
            return
        profile, self.profile = self.profile, None
        profile.stop()
        steps = self.steps_done - self.warmup_steps
        try:
            profile.export_chrome_trace(str(self.run.folder / TRACE_FILE))
            text = f"{steps} steps traced: {TRACE_FILE} opens in Perfetto (https://ui.perfetto.dev)"
        except OSError as error:
            text = f"the trace is incomplete: {error}"
        self.run.events.add("trace", text, self.run.counters.step)


STEP_PHASES = ("forward", "train", "optimizer", "compile")
"""Phases of a step. `train` includes everything else: backward, loss, preprocessing, records."""


def split_step_time(run: Run) -> None:
    """Let the timer of a run split the time of its steps into forward, backward, update and compilation."""
    # On a GPU calls return before the computation ends.
    if run.device.type != "cpu":
        return
    run.step.forward.phase = run.step.updater.phase = StepPhases(run).phase


class StepPhases:
    """Counts parts of a training step as separate phases; an evaluation stays one phase."""

    def __init__(self, run: Run) -> None:
        self.clock = run.clock
        self.compiles_next = run.plan.value("compile") is not False

    def phase(self, name: str) -> contextlib.AbstractContextManager[None]:
        """Return a context that times a part of a step by its name."""
        if self.clock.open_phases[-1:] != ["train"]:
            return contextlib.nullcontext()
        # The first forward pass counts as compilation.
        if self.compiles_next and name == "forward":
            self.compiles_next = False
            name = "compile"
        return self.clock.phase(name)
