"""A thread that samples memory, CPU, GPUs and progress into telemetry.jsonl, by default once a second.

with Monitor(folder, run) as monitor: ...
monitor.latest(), monitor.history()
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil
import torch

from runtime.hardware.cgroup_usage import ProcessCgroup
from runtime.hardware.facts import Gpu
from runtime.system import cpu_starvation, process_tree
from runtime.tracking.gpu_sensors import Sensors
from runtime.training.run import Run

Sample = dict[str, float | int | str | None]
SHOWN_EVERY = 5
"""One in so many samples goes to TensorBoard."""


class Monitor:
    """Samples this process and its children until closed.

    Args:
        folder: gets telemetry.jsonl.
        run: its progress is recorded; None to record the process only.
        interval: seconds between samples.
        gpus: GPUs to record; those of the run if None.
    """

    def __init__(
        self, folder: Path, run: Run | None = None, interval: float = 1.0, gpus: Sequence[Gpu] | None = None
    ) -> None:
        self.path, self.run, self.interval = folder / "telemetry.jsonl", run, interval
        self.start = time.monotonic()
        self.peak = 0
        self.spent = 0.0
        """CPU seconds of the sampling thread so far."""
        self.samples: list[Sample] = []
        self.process, self.group = psutil.Process(), ProcessCgroup()
        self.progress = _progress(run) if run else dict
        self.sensors = Sensors((run.hardware.gpus if run else ()) if gpus is None else gpus)
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self._work, name="monitor", daemon=True)

    def __enter__(self) -> Monitor:
        self.process.cpu_percent()
        self.thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop.set()
        self.thread.join()
        self.sensors.close()

    def latest(self) -> Sample | None:
        """The last sample."""
        return self.samples[-1] if self.samples else None

    def history(self) -> list[Sample]:
        """All samples."""
        return list(self.samples)

    def _work(self) -> None:
        ended = False
        while not ended:
            ended = self.stop.wait(self.interval)
            sample = self._sample()
            self.samples.append(sample)
            if self.run and self.run.metrics and len(self.samples) % SHOWN_EVERY == 1:
                self.run.metrics.board.put(self.run.counters.step, _shown(sample))
            # A full disk may lose a sample, but must not affect the run.
            with contextlib.suppress(OSError), self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(sample) + "\n")
            self.spent = time.thread_time()

    def _sample(self) -> Sample:
        rss = process_tree.resident()
        self.peak = max(self.peak, rss)
        limit, used = self.group.memory()
        return {
            "seconds": round(time.monotonic() - self.start, 3),
            "rss": rss,
            "memory_used": used,
            "memory_limit": limit,
            "cpu_percent": self.process.cpu_percent(),
            "throttled_seconds": self.group.throttled(),
            "waited_seconds": cpu_starvation.waited(process_tree.members()),
            "stolen_seconds": cpu_starvation.stolen(),
            **self.sensors.read(),
            **self.progress(),
        }


def _shown(sample: Sample) -> dict[str, float]:
    """The hardware's values, in readable units."""
    units = {
        "rss": ("processes GiB", 2.0**30),
        "memory_used": ("container GiB", 2.0**30),
        "cpu_percent": ("CPUs busy", 100.0),
        "throttled_seconds": ("throttled s", 1.0),
        "samples_per_second": ("samples per s", 1.0),
        "input_wait": ("input wait", 1.0),
        "gpu_percent": ("GPU busy", 100.0),
        "gpu_memory": ("GPU GiB", 2.0**30),
        "gpu_allocated": ("GPU tensors GiB", 2.0**30),
        "gpu_reserved": ("GPU reserved GiB", 2.0**30),
        "gpu_temperature": ("GPU C", 1.0),
        "gpu_power": ("GPU W", 1.0),
        "gpu_clock": ("GPU MHz", 1.0),
        "gpu_throttled": ("GPU throttled", 1.0),
    }
    return {
        f"hardware/{name}": value / unit
        for key, (name, unit) in units.items()
        if isinstance(value := sample.get(key), int | float)
    }


def _tensors(device: torch.device) -> dict[str, int]:
    """Bytes of this process's tensors on its GPU, and bytes that its allocator has reserved."""
    if device.type != "cuda":
        return {}
    return {"gpu_allocated": torch.cuda.memory_allocated(device), "gpu_reserved": torch.cuda.memory_reserved(device)}


def _progress(run: Run) -> Callable[[], dict[str, Any]]:
    """A function that returns the samples per second and the share of waiting since its last call."""
    before = [time.monotonic(), run.counters.samples, 0.0]

    def since() -> dict[str, Any]:
        now, samples, waited = time.monotonic(), run.counters.samples, run.clock.phases.get("input", 0.0)
        span = max(1e-9, now - before[0])
        values = {
            "step": run.counters.step,
            "samples_per_second": round((samples - before[1]) / span, 2),
            "input_wait": round(min(1.0, (waited - before[2]) / span), 4),
            **_tensors(run.device),
        }
        before[:] = [now, samples, waited]
        return values

    return since
