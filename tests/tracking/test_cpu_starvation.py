"""A CPU that others have: counted by the kernel, told in the live view, and not mistaken for our own waiting."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from drivetrain.system import cpu_starvation
from drivetrain.tracking.live.dashboard import render
from drivetrain.tracking.live.run_reader import RunReader
from tests.report_folder import make_live_run, write_rows


def test_the_kernels_counters(tmp_path: Path) -> None:
    for process, thread, wait in ((7, 7, 2_000_000_000), (7, 8, 500_000_000), (9, 9, 1_000_000_000)):
        task = tmp_path / str(process) / "task" / str(thread)
        task.mkdir(parents=True)
        (task / "schedstat").write_text(f"123456 {wait} 42\n")
    assert cpu_starvation.read_waited_seconds([7, 9, 11], tmp_path) == 3.5
    assert cpu_starvation.read_waited_seconds([11], tmp_path) is None


def test_this_process_is_counted_where_the_kernel_counts() -> None:
    if not Path("/proc/self/schedstat").exists():
        pytest.skip("this kernel does not count")
    assert (cpu_starvation.read_waited_seconds() or 0.0) > 0


def make_readings(busy: float, waited: float) -> list[dict[str, Any]]:
    """Readings of 41 seconds: CPUs busy, and seconds lost each second."""
    return [
        {
            "seconds": s + 0.5,
            "step": s,
            "samples_per_second": 300.0,
            "cpu_percent": 100 * busy,
            "process_memory": 4e8,
            "waited_seconds": 50 + waited * s,
            "throttled_seconds": 0.0,
        }
        for s in range(41)
    ]


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
