"""A thread that samples memory, CPU, GPUs and progress into telemetry.jsonl, by default once a second.

with Monitor(folder) as monitor: ...
monitor.latest(), monitor.history()

GPUs are read from the driver's management library (NVML).
"""

from __future__ import annotations

import contextlib
import importlib
import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil

from drivetrain.hardware import nvidia
from drivetrain.hardware.cgroup import ProcessCgroup
from drivetrain.hardware.facts import Gpu
from drivetrain.hardware.used_memory import read_used_memory
from drivetrain.system import cpu_starvation, process_tree
from drivetrain.system.run_files import TELEMETRY_FILE, RunFiles

Sample = dict[str, float | int | str | None]

THROTTLE_REASONS = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x20: "heat (software)",
    0x40: "heat (hardware)",
    0x80: "power brake",
}
"""Reasons for a reduced clock, by bit; idling and clocks that a user has set are no throttling."""


class Monitor:
    """Samples this process and its children until closed.

    Args:
        folder: gets telemetry.jsonl.
        interval: seconds between samples.
        gpus: GPUs to record.
        progress: returns values that a run adds to every sample, for example its step and speed.
        root: root of the file system, for the memory of groups and processes.
    """

    def __init__(
        self,
        folder: Path,
        interval: float = 1.0,
        gpus: Sequence[Gpu] = (),
        *,
        progress: Callable[[], Mapping[str, Any]] = dict,
        root: Path = Path("/"),
    ) -> None:
        self.files, self.interval, self.root = RunFiles(folder), interval, root
        self.progress = progress
        self.start = time.monotonic()
        self.peak = 0
        """The most memory so far: of the control group if it has a limit, else of all processes."""
        self.samples: list[Sample] = []
        self.process, self.group = psutil.Process(), ProcessCgroup(root)
        self.sensors = Sensors(gpus)
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self._sample_until_closed, name="monitor", daemon=True)

    def __enter__(self) -> Monitor:
        self.process.cpu_percent()
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        self.thread.join()
        self.sensors.close()

    def latest(self) -> Sample | None:
        """Return the last sample."""
        return self.samples[-1] if self.samples else None

    def history(self) -> list[Sample]:
        """Return all samples."""
        return list(self.samples)

    def _sample_until_closed(self) -> None:
        ended = False
        while not ended:
            ended = self.stop.wait(self.interval)
            sample = self._take_sample()
            self.samples.append(sample)
            # A full disk may lose a sample, but must not affect the run.
            with contextlib.suppress(OSError):
                self.files.append(TELEMETRY_FILE, json.dumps(sample) + "\n")

    def _take_sample(self) -> Sample:
        memory = read_used_memory(self.group, self.root)
        self.peak = max(self.peak, memory.counted)
        return {
            "seconds": round(time.monotonic() - self.start, 3),
            "process_memory": memory.processes,
            "memory_used": memory.group,
            "memory_limit": memory.limit,
            "cpu_percent": self.process.cpu_percent(),
            "throttled_seconds": self.group.read_throttled_seconds(),
            "waited_seconds": cpu_starvation.read_waited_seconds(process_tree.list_process_ids()),
            **self.sensors.read(),
            **self.progress(),
        }


class Sensors:
    """Reads GPUs. Values that a GPU does not support are missing.

    Args:
        gpus: the GPUs of the run, in its order.
        nvml: a module with pynvml's functions; None imports pynvml if there is a GPU.
    """

    def __init__(self, gpus: Sequence[Gpu], nvml: ModuleType | None = None) -> None:
        self.handles: dict[str, Any] = {}
        self.open = False
        if not gpus:
            return
        self.nvml = nvml or importlib.import_module("pynvml")
        try:
            self.nvml.nvmlInit()
            self.open = True
            self.handles = {f"gpu{number or ''}_": self._open_gpu(gpu) for number, gpu in enumerate(gpus)}
        except self.nvml.NVMLError:
            self.handles = {}

    def read(self) -> Sample:
        """Read all supported values.

        The first GPU is `gpu_...`, the next `gpu1_...`: `percent` of the time busy, `memory` in use by all processes
        and `memory_limit` in bytes, `temperature` in degrees Celsius, `power` in watts, `clock` in MHz, `throttled` 1
        while the clock is reduced, and then `throttle_reasons` as text.
        """
        values: Sample = {}
        for start, handle in self.handles.items():
            for names, query in self._list_queries(handle).items():
                try:
                    answers = query()
                except self.nvml.NVMLError:  # a MIG instance has no clock, an old card no power meter
                    continue
                values |= {start + name: value for name, value in zip(names, answers, strict=False)}
        return values

    def close(self) -> None:
        """Stop the library."""
        if self.open:
            self.open = False
            self.nvml.nvmlShutdown()

    def _open_gpu(self, gpu: Gpu) -> Any:
        handle = self.nvml.nvmlDeviceGetHandleByIndex(gpu.index)
        instances = nvidia.list_instances(self.nvml, handle) if gpu.mig else ()
        # By its id: equal instances have the same name, and the first of them may be a neighbor's.
        return next((i for i in instances if self.nvml.nvmlDeviceGetUUID(i) == gpu.uuid), handle)

    def _list_queries(self, handle: object) -> Mapping[tuple[str, ...], Callable[[], tuple[float | int | str, ...]]]:
        nvml = self.nvml

        def read_memory() -> tuple[int, int]:
            info = nvml.nvmlDeviceGetMemoryInfo(handle)
            return int(info.used), int(info.total)

        def read_throttling() -> tuple[int | str, ...]:
            bits = nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
            reasons = ", ".join(reason for bit, reason in THROTTLE_REASONS.items() if bits & bit)
            return (1, reasons) if reasons else (0,)

        return {
            ("percent",): lambda: (nvml.nvmlDeviceGetUtilizationRates(handle).gpu,),
            ("memory", "memory_limit"): read_memory,
            ("temperature",): lambda: (nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),),
            ("power",): lambda: (nvml.nvmlDeviceGetPowerUsage(handle) / 1000,),
            ("clock",): lambda: (nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),),
            ("throttled", "throttle_reasons"): read_throttling,
        }
