"""A CPU that others have: counted by the kernel, told in report and live view, and not mistaken for our own waiting."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from drivetrain.report.write import write
from drivetrain.system import cpu_starvation
from drivetrain.tracking.live.dashboard import render
from drivetrain.tracking.live.run_reader import RunReader
from tests.messages import get_message
from tests.report_folder import make_live_run, make_run, write_rows


def test_the_kernels_counters(tmp_path: Path) -> None:
    for process, thread, wait in ((7, 7, 2_000_000_000), (7, 8, 500_000_000), (9, 9, 1_000_000_000)):
        task = tmp_path / str(process) / "task" / str(thread)
        task.mkdir(parents=True)
        (task / "schedstat").write_text(f"123456 {wait} 42\n")
    (tmp_path / "stat").write_text("cpu  100 2 3 400 5 0 6 700 0 0\ncpu0 1 1 1 1 1 0 1 700 0 0\n")
    assert cpu_starvation.read_waited_seconds([7, 9, 11], tmp_path) == 3.5
    assert cpu_starvation.read_waited_seconds([11], tmp_path) is None
    assert cpu_starvation.read_stolen_seconds(tmp_path) == 7.0
    assert cpu_starvation.read_stolen_seconds(tmp_path / "nowhere") is None


def test_this_process_is_counted_where_the_kernel_counts() -> None:
    if not Path("/proc/self/schedstat").exists():
        pytest.skip("this kernel does not count")
    assert (cpu_starvation.read_waited_seconds() or 0.0) > 0


def make_readings(busy: float, waited: float, stolen: float = 0.0, throttled: float = 0.0) -> list[dict[str, Any]]:
    """Readings of 41 seconds: CPUs busy, and seconds lost each second."""
    return [
        {
            "seconds": s + 0.5,
            "step": s,
            "samples_per_second": 300.0,
            "cpu_percent": 100 * busy,
            "process_memory": 4e8,
            "waited_seconds": 50 + waited * s,
            "stolen_seconds": 9 + stolen * s,
            "throttled_seconds": throttled * s,
        }
        for s in range(41)
    ]


@pytest.mark.parametrize(
    ("readings", "message"),
    [
        (
            make_readings(1.2, 0.6),
            "used the CPU for 24.0 s while this run was waiting for it: 30 % of its CPU time",
        ),
        (make_readings(1.9, 0.6), "used the CPU for 4.00 s while this run"),  # mostly its own threads
        (make_readings(1.98, 0.6), ""),
        (make_readings(1.2, 0.6, throttled=0.58), ""),  # that was the quota, which is told by itself
        (make_readings(1.2, 0.0, stolen=0.5), "gave 20.0 s of CPU time to other virtual machines (steal), 25 %"),
    ],
)
def test_a_report_shows_cpu_time_used_by_others(tmp_path: Path, readings: list[dict[str, Any]], message: str) -> None:
    run = make_run(tmp_path / "digits-001")
    write_rows(run / "telemetry.jsonl", readings)
    write(run)
    text = (run / "report.md").read_text(encoding="utf-8").replace("\\", "")
    message = message.replace("4.00 s", "4.0 s")
    assert (message in text) if message else (get_message("used-cpu-for") not in text and "steal" not in text)
    assert ("Other processes" in text) == ("used the CPU" in message)


def test_the_live_view_shows_it(tmp_path: Path) -> None:
    run = make_live_run(tmp_path / "digits-001")
    file = io.StringIO()
    for busy, waited, expected in ((1.2, 0.6, "others use 30%"), (1.95, 0.6, "")):
        write_rows(run / "telemetry.jsonl", make_readings(busy, waited))
        view = RunReader(run).read()
        Console(file=file, width=80, highlight=False).print(render(view, 80))
        output = file.getvalue()
        file.seek(0)
        file.truncate()
        assert expected in output
        assert bool(expected) == ("others use" in output)
