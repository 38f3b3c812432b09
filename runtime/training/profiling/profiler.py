"""Tracer: a few warm steps under torch.profiler: the dearest operators, and a trace to look at in Perfetto.

It watches; what is computed, and so every bit of the run, stays as it is.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from runtime.errors import DrivetrainError
from runtime.system.files import write_json

if TYPE_CHECKING:
    from runtime.training.run import Run

TRACE, OPERATORS = "trace.json.gz", "operators.json"
WARM = 10
"""Steps before: the first ones load kernels, fill caches and compile."""
STEPS = 5
"""Steps that are traced."""
SHOWN = 20
"""Operators that are kept."""


class Profiler:
    """Counts steps, and profiles some of them.

    Args:
        run: whose folder the files go to.
    """

    def __init__(self, run: Run) -> None:
        self.run, self.seen, self.start = run, 0, 0.0
        self.profile: Any = None
        # A run of fewer steps is traced from its second one on.
        self.warm = min(WARM, max(1, run.total_steps - run.counters.step - STEPS))

    def step(self) -> None:
        """After every step."""
        self.seen += 1
        if self.seen == self.warm:
            self._begin()
        elif self.seen == self.warm + STEPS:
            self.close()

    def _begin(self) -> None:
        from torch.profiler import ProfilerActivity, profile

        kinds = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (self.run.device.type == "cuda")
        self.profile = profile(activities=kinds)
        self.profile.start()
        self.start = time.perf_counter()

    def close(self) -> None:
        """End the trace, if it runs, and write what it saw; what cannot be written is an event and ends nothing."""
        if self.profile is None:
            return
        seconds = time.perf_counter() - self.start
        ended, self.profile = self.profile, None
        ended.stop()
        steps = self.seen - self.warm
        try:
            ended.export_chrome_trace(str(self.run.folder / TRACE))
            write_json(self.run.folder / OPERATORS, _operators(ended, steps, seconds, self.run.device.type))
        except (OSError, DrivetrainError) as error:
            self.run.events.add("trace", f"the trace is not whole: {error}", self.run.counters.step)
            return
        self.run.events.add(
            "trace",
            f"{steps} steps traced: {TRACE} opens in Perfetto (https://ui.perfetto.dev)",
            self.run.counters.step,
        )


def _operators(profile: Any, steps: int, seconds: float, device: str) -> dict[str, Any]:
    """The dearest operators: time in them alone, on the device that computes, in seconds over all traced steps."""
    own = "self_device_time_total" if device == "cuda" else "self_cpu_time_total"
    rows = [
        {"name": row.key, "seconds": getattr(row, own) / 1e6, "calls": row.count}
        for row in profile.key_averages()
        if getattr(row, own) > 0
    ]
    rows.sort(key=lambda row: -row["seconds"])
    total = sum(row["seconds"] for row in rows)
    return {"steps": steps, "wall_seconds": seconds, "device": device, "total": total, "operators": rows[:SHOWN]}
