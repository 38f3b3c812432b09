"""A thread that samples memory, CPU, GPUs and progress into telemetry.jsonl, by default once a second.

with Monitor(folder) as monitor: ...
monitor.latest(), monitor.history()
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil

from runtime.hardware.cgroup_usage import ProcessCgroup
from runtime.hardware.facts import Gpu
from runtime.system import cpu_starvation, process_tree
from runtime.system.run_files import RunFiles
from runtime.tracking.gpu_sensors import Sensors

Sample = dict[str, float | int | str | None]
FILE = "telemetry.jsonl"
SHOWN_EVERY = 5
"""One in so many samples goes to TensorBoard."""


class Monitor:
    """Samples this process and its children until closed.

    Args:
        folder: gets telemetry.jsonl.
        interval: seconds between samples.
        gpus: GPUs to record.
        progress: returns what a run adds to every sample, such as its step and speed.
        show: called with the hardware metrics of every few samples, by their TensorBoard tags.
        sampled: called with every sample.
    """

    def __init__(
        self,
        folder: Path,
        interval: float = 1.0,
        gpus: Sequence[Gpu] = (),
        *,
        progress: Callable[[], Mapping[str, Any]] = dict,
        show: Callable[[Mapping[str, float]], None] | None = None,
        sampled: Callable[[Sample], None] | None = None,
    ) -> None:
        self.files, self.interval = RunFiles(folder), interval
        self.progress, self.show, self.sampled = progress, show, sampled
        self.start = time.monotonic()
        self.peak = 0
        self.spent = 0.0
        """CPU seconds of the sampling thread so far."""
        self.samples: list[Sample] = []
        self.process, self.group = psutil.Process(), ProcessCgroup()
        self.sensors = Sensors(gpus)
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
            if self.show and len(self.samples) % SHOWN_EVERY == 1:
                self.show(_shown(sample))
            if self.sampled:
                self.sampled(sample)
            # A full disk may lose a sample, but must not affect the run.
            with contextlib.suppress(OSError):
                self.files.append(FILE, json.dumps(sample) + "\n")
            self.spent = time.thread_time()

    def _sample(self) -> Sample:
        rss = process_tree.resident_bytes()
        self.peak = max(self.peak, rss)
        limit, used = self.group.memory()
        return {
            "seconds": round(time.monotonic() - self.start, 3),
            "rss": rss,
            # Without a limit the group is that of the whole machine, whose memory is not the run's.
            "memory_used": used if limit else None,
            "memory_limit": limit,
            "cpu_percent": self.process.cpu_percent(),
            "throttled_seconds": self.group.throttled(),
            "waited_seconds": cpu_starvation.seconds_waited(process_tree.process_ids()),
            "stolen_seconds": cpu_starvation.seconds_stolen(),
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
