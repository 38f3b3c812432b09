"""GPUs watched through a stand-in for NVML: by the monitor, in its file, in the report."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from drivetrain.hardware.facts import Gpu
from drivetrain.job_spec import load_job as job_spec
from drivetrain.job_spec.yaml_file import parse
from drivetrain.report.blocks import Chart, Text
from drivetrain.report.log_series import collect_series
from drivetrain.report.record import Record, summarize
from drivetrain.report.run_sections import list_time
from drivetrain.tracking import monitor
from drivetrain.tracking.monitor import Monitor, Sensors
from tests.messages import get_message, says_each
from tests.nvml_double import A100, GIB, RTX, Card, Nvml

HOT = 0x4 | 0x40 | 0x1


@dataclass
class SensorNvml(Nvml):
    """Answers what a card is doing, too."""

    reasons: int = 0x1
    deaf: tuple[str, ...] = ()
    NVML_TEMPERATURE_GPU = pynvml.NVML_TEMPERATURE_GPU
    NVML_CLOCK_SM = pynvml.NVML_CLOCK_SM

    def _answer(self, name: str, value: Any) -> Any:
        if name in self.deaf:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return value

    def nvmlDeviceGetMemoryInfo(self, card: Card) -> SimpleNamespace:
        return SimpleNamespace(total=card.memory, free=card.memory - GIB, used=GIB)

    def nvmlDeviceGetUtilizationRates(self, card: Card) -> SimpleNamespace:
        return self._answer("percent", SimpleNamespace(gpu=87, memory=20))

    def nvmlDeviceGetTemperature(self, card: Card, sensor: int) -> int:
        assert sensor == pynvml.NVML_TEMPERATURE_GPU
        return self._answer("temperature", 71)

    def nvmlDeviceGetPowerUsage(self, card: Card) -> int:
        return self._answer("power", 151_500)

    def nvmlDeviceGetClockInfo(self, card: Card, clock: int) -> int:
        assert clock == pynvml.NVML_CLOCK_SM
        return self._answer("clock", 1777)

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, card: Card) -> int:
        return self._answer("throttled", self.reasons)


def gpu(index: int, card: Card = RTX) -> Gpu:
    name = card.name if isinstance(card.name, str) else card.name.decode()
    memory = card.memory
    return Gpu(
        index=index, name=name, capability=card.capability, memory=memory, free=memory, driver="550", uuid=card.uuid
    )


def test_sensor_values_of_a_gpu() -> None:
    nvml = SensorNvml([RTX, RTX])
    sensors = Sensors([gpu(1)], nvml)  # type: ignore[arg-type]
    assert sensors.read() == {
        "gpu_percent": 87,
        "gpu_memory": GIB,
        "gpu_memory_limit": 12 * GIB,
        "gpu_temperature": 71,
        "gpu_power": 151.5,
        "gpu_clock": 1777,
        "gpu_throttled": 0,
    }
    sensors.close()
    assert nvml.open == 0


def test_why_a_clock_is_held_back() -> None:
    readings = Sensors([gpu(0)], SensorNvml([RTX], reasons=HOT)).read()  # type: ignore[arg-type]
    assert (readings["gpu_throttled"], readings["gpu_throttle_reasons"]) == (1, "power cap, heat (hardware)")


def test_several_gpus_are_numbered_in_the_order_of_the_run() -> None:
    readings = Sensors([gpu(2), gpu(0)], SensorNvml([RTX, RTX, replace(RTX, memory=24 * GIB)])).read()  # type: ignore[arg-type]
    assert (readings["gpu_memory_limit"], readings["gpu1_memory_limit"]) == (24 * GIB, 12 * GIB)


@pytest.mark.parametrize("deaf", [("power",), ("percent", "clock", "throttled"), ("temperature",)])
def test_an_unsupported_sensor_is_left_out(deaf: tuple[str, ...]) -> None:
    readings = Sensors([gpu(0)], SensorNvml([RTX], deaf=deaf)).read()  # type: ignore[arg-type]
    assert not {f"gpu_{name}" for name in deaf} & readings.keys()
    assert readings["gpu_memory"] == GIB


def test_a_mig_instance_is_monitored_itself() -> None:
    part = replace(gpu(0, A100.instances[1]), mig=True)
    readings = Sensors([part], SensorNvml([A100])).read()  # type: ignore[arg-type]
    assert readings["gpu_memory_limit"] == 5 * GIB


def test_of_equal_mig_instances_the_one_of_the_run_is_monitored() -> None:
    neighbour, other = A100.instances[1], replace(A100.instances[1], uuid="MIG-2", memory=6 * GIB)
    part = replace(gpu(0, other), mig=True)
    readings = Sensors([part], SensorNvml([replace(A100, instances=(neighbour, other))])).read()  # type: ignore[arg-type]
    assert readings["gpu_memory_limit"] == 6 * GIB


def test_an_unresponsive_driver_does_not_end_the_run() -> None:
    nvml = SensorNvml([RTX], broken=pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
    sensors = Sensors([gpu(0)], nvml)  # type: ignore[arg-type]
    assert sensors.read() == {}
    sensors.close()
    lost_gpu = Sensors([gpu(0)], SensorNvml([replace(RTX, error=pynvml.NVML_ERROR_GPU_IS_LOST)]))  # type: ignore[arg-type]
    assert lost_gpu.read() == {}


def test_no_gpu_needs_no_library() -> None:
    sensors = Sensors(())
    assert sensors.read() == {}
    sensors.close()


def test_the_monitor_records_the_sensors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = SensorNvml([RTX])
    monkeypatch.setattr(monitor, "Sensors", lambda gpus: Sensors(gpus, nvml))  # type: ignore[arg-type]
    with Monitor(tmp_path, interval=0.01, gpus=[gpu(0)]) as watching:
        pass
    latest = watching.latest()
    assert latest is not None
    assert (latest["gpu_percent"], latest["gpu_temperature"]) == (87, 71)
    rows = [json.loads(line) for line in (tmp_path / "telemetry.jsonl").read_text().splitlines()]
    assert rows == watching.history()
    assert nvml.open == 0


def test_the_report_shows_them() -> None:
    rows = [
        {
            "seconds": float(n),
            "gpu_percent": 80 + n,
            "gpu_memory": GIB * n,
            "gpu_memory_limit": 12 * GIB,
            "gpu_temperature": 60 + n,
            "gpu_power": 150.0,
            "gpu_clock": 1700,
            "gpu_throttled": int(n == 3),
            "gpu1_percent": 10,
            "gpu_allocated": GIB,
            "gpu_reserved": GIB,
        }
        for n in range(4)
    ]
    record = Record("a", telemetry=collect_series(rows, "seconds"))
    blocks = list(list_time(record, summarize(record)))
    charts = [block for block in blocks if isinstance(block, Chart)]
    assert [chart.title for chart in charts] == ["GPU busy, %", "GPU memory, GiB"]
    assert [line.name for line in charts[0].lines] == ["gpu", "gpu1"]
    assert charts[1].limit == ("limit", 12.0)
    texts = [block.text for block in blocks if isinstance(block, Text)]
    assert says_each(texts, [get_message("gpu-clock-throttled-readings", 25, "telemetry.jsonl")])


def test_the_monitoring_interval_is_a_spec_key() -> None:
    job = job_spec.check(
        parse("name: a\ntask: image-classification\ndata: {train: x}\nmonitor: {every: 0.2s}\n", "a.yaml")
    )
    assert job.monitor.every == "0.2s"
