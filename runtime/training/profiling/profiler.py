"""Profiles a few warm steps with torch.profiler: the most expensive operators, and a trace for Perfetto.

Profiling changes nothing in the computation, so the run stays bit-identical.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from runtime.errors import DrivetrainError
from runtime.system.files import write_json

TRACE, OPERATORS = "trace.json.gz", "operators.json"
WARM = 10
"""Steps before profiling: the first ones load kernels, fill caches and compile."""
STEPS = 5
"""Steps that are profiled."""
SHOWN = 20
"""Operators that are recorded."""


class Profiler:
    """Counts steps, and profiles some of them.

    Args:
        folder: gets the files.
        device: the type of the device that computes, cpu or cuda.
        steps_left: steps until the run ends.
        tell: where the result is reported.
    """

    def __init__(self, folder: Path, device: str, steps_left: int, tell: Callable[[str], None]) -> None:
        self.folder, self.device, self.tell = folder, device, tell
        self.seen, self.start = 0, 0.0
        self.profile: Any = None
        # A short run is profiled from its second step on.
        self.warm = min(WARM, max(1, steps_left - STEPS))

    def step(self) -> None:
        """Call after every step."""
        self.seen += 1
        if self.seen == self.warm:
            self._begin()
        elif self.seen == self.warm + STEPS:
            self.close()

    def _begin(self) -> None:
        from torch.profiler import ProfilerActivity, profile

        kinds = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (self.device == "cuda")
        self.profile = profile(activities=kinds)
        self.profile.start()
        self.start = time.perf_counter()

    def close(self) -> None:
        """Stop profiling, if it is active, and write the results; a failure is only recorded as an event."""
        if self.profile is None:
            return
        seconds = time.perf_counter() - self.start
        ended, self.profile = self.profile, None
        ended.stop()
        steps = self.seen - self.warm
        try:
            ended.export_chrome_trace(str(self.folder / TRACE))
            write_json(self.folder / OPERATORS, _operators(ended, steps, seconds, self.device))
        except (OSError, DrivetrainError) as error:
            self.tell(f"the trace is incomplete: {error}")
            return
        self.tell(f"{steps} steps traced: {TRACE} opens in Perfetto (https://ui.perfetto.dev)")


def _operators(profile: Any, steps: int, seconds: float, device: str) -> dict[str, object]:
    """The most expensive operators by self time on the computing device, in seconds over all profiled steps."""
    own = "self_device_time_total" if device == "cuda" else "self_cpu_time_total"
    rows = [
        {"name": row.key, "seconds": getattr(row, own) / 1e6, "calls": row.count}
        for row in profile.key_averages()
        if getattr(row, own) > 0
    ]
    rows.sort(key=lambda row: -row["seconds"])
    total = sum(row["seconds"] for row in rows)
    return {"steps": steps, "wall_seconds": seconds, "device": device, "total": total, "operators": rows[:SHOWN]}
