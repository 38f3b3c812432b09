"""Reads sensors of the run's GPUs from the driver's management library (NVML)."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from runtime.hardware.facts import Gpu

if TYPE_CHECKING:
    from types import ModuleType

Reading = dict[str, float | int | str | None]

REASONS = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x20: "heat (software)",
    0x40: "heat (hardware)",
    0x80: "power brake",
}
"""Reasons for a reduced clock, by bit; idling and clocks that a user has set are no throttling."""


class Sensors:
    """Reads some GPUs. Values that a GPU does not support are missing from the reading.

    Args:
        gpus: those of the run, in its order.
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
            self.handles = {f"gpu{place or ''}_": self._handle(gpu) for place, gpu in enumerate(gpus)}
        except self.nvml.NVMLError:
            self.handles = {}

    def read(self) -> Reading:
        """Read all supported values.

        The first GPU is `gpu_...`, the next `gpu1_...`: `percent` of the time busy, `memory` in use by all processes
        and `memory_limit` in bytes, `temperature` in degrees Celsius, `power` in watts, `clock` in MHz, `throttled` 1
        while the clock is reduced, and then `throttle_reasons` as text.
        """
        found: Reading = {}
        for start, handle in self.handles.items():
            for names, ask in self._questions(handle).items():
                try:
                    answers = ask()
                except self.nvml.NVMLError:  # a MIG instance has no clock, an old card no power meter
                    continue
                found |= {start + name: value for name, value in zip(names, answers, strict=False)}
        return found

    def close(self) -> None:
        """Shut the library down."""
        if self.open:
            self.open = False
            self.nvml.nvmlShutdown()

    def _handle(self, gpu: Gpu) -> Any:
        nvml = self.nvml
        handle = nvml.nvmlDeviceGetHandleByIndex(gpu.index)
        if not gpu.mig:
            return handle
        for number in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
            try:
                part = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number)
            except nvml.NVMLError:  # slots are numbered, and most are empty
                continue
            # By its id: equal instances have the same name, and the first of them may be a neighbour's.
            if _text(nvml.nvmlDeviceGetUUID(part)) == gpu.uuid:
                return part
        return handle

    def _questions(self, handle: object) -> Mapping[tuple[str, ...], Callable[[], tuple[float | int | str, ...]]]:
        nvml = self.nvml

        def memory() -> tuple[int, int]:
            told = nvml.nvmlDeviceGetMemoryInfo(handle)
            return int(told.used), int(told.total)

        def throttle() -> tuple[int | str, ...]:
            bits = nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
            words = ", ".join(word for bit, word in REASONS.items() if bits & bit)
            return (1, words) if words else (0,)

        return {
            ("percent",): lambda: (nvml.nvmlDeviceGetUtilizationRates(handle).gpu,),
            ("memory", "memory_limit"): memory,
            ("temperature",): lambda: (nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),),
            ("power",): lambda: (nvml.nvmlDeviceGetPowerUsage(handle) / 1000,),
            ("clock",): lambda: (nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),),
            ("throttled", "throttle_reasons"): throttle,
        }


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
