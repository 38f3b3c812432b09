"""Advice about the cost of a run: fabricated runs that need a change get it, with gain and line; a healthy run gets none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from drivetrain.report.machine_advice import Advice
from drivetrain.report.model_advice import MAX_SUGGESTIONS, list_advice
from drivetrain.report.record import read, summarize
from drivetrain.report.write import write
from tests.messages import begins_with, says_only
from tests.report_folder import change_json, make_run, telemetry, write_rows

GIB = 2**30


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run whose allocator is as asked, and whose limit fits: nothing to fix."""
    run_folder = make_run(tmp_path / "digits-001")
    change_json(run_folder / "result.json", lambda r: r.update(memory_limit=GIB, peak_memory=700 << 20))
    change_json(run_folder / "hardware.json", lambda h: h["cpu"].update(host=4))
    write_rows(
        run_folder / "telemetry.jsonl", [row | {"memory_limit": GIB, "memory_used": 700 << 20} for row in telemetry()]
    )
    return run_folder


def list_run_advice(run: Path) -> list[Advice]:
    record = read(run)
    return list_advice(record, summarize(record))


def phases(run: Path, **seconds: float) -> None:
    change_json(run / "result.json", lambda r: r["phases"].update(seconds))


def decide(run: Path, name: str, value: Any, source: str = "job") -> None:
    """Set a decision of the plan, or add it."""

    def edit(plan: dict[str, Any]) -> None:
        row = plan["decisions"][0] | {"name": name, "value": value, "source": source}
        plan["decisions"] = [d for d in plan["decisions"] if d["name"] != name] + [row]

    change_json(run / "plan.json", edit)


def throttle(run: Path, part: float) -> None:
    write_rows(
        run / "telemetry.jsonl", [row | {"throttled_seconds": part * (row["seconds"] or 0)} for row in telemetry()]
    )


def test_nothing_to_change(run: Path) -> None:
    assert list_run_advice(run) == []
    write(run)
    assert json.loads((run / "report.json").read_text(encoding="utf-8"))["advice"] == []


def test_waiting_for_input(run: Path) -> None:
    phases(run, input=20.8, train=14.4)
    (one,) = list_run_advice(run)
    assert one.line == "optimize: {loader_workers: 1}"
    assert (one.why, one.gain) == ("training waited 20.8 s for data", "up to 50 % less time")


def test_loading_slower_than_computing_bounds_the_speed(run: Path) -> None:
    phases(run, input=31.2, train=4.0)
    assert list_run_advice(run)[0].gain == "up to 25 % less time"


@pytest.mark.parametrize(
    ("name", "value", "line"),
    [("decode_cache", False, "optimize: {decode_cache: true}"), ("loader_workers", 1, "limits: {cpus: 3}")],
)
def test_waiting_for_input_with_other_plans(run: Path, name: str, value: Any, line: str) -> None:
    phases(run, input=20.8, train=14.4)
    decide(run, name, value)
    assert [one.line for one in list_run_advice(run)] == [line]


@pytest.mark.parametrize(("threads", "line"), [(4, "optimize: {cpu_threads: 2}"), (2, "limits: {cpus: 3}")])
def test_throttled_by_the_quota(run: Path, threads: int, line: str) -> None:
    throttle(run, 0.5)
    decide(run, "cpu_threads", threads)
    one = list_run_advice(run)[0]
    assert one.line == line
    assert begins_with(one.why, "quota-cpus-throttled", 2, "20.0", "41.6")
    assert one.gain == "up to 48.1 % less time"


def test_saving_too_often(run: Path) -> None:
    phases(run, checkpoint=10.4, train=24.8)
    (one,) = list_run_advice(run)
    assert (one.line, one.gain) == ("checkpoint: {every: 15m}", "up to 25 % less time")


def test_no_cache_is_advised_where_the_runtime_had_a_reason(run: Path) -> None:
    """Texts have no image cache: the line would be refused."""
    phases(run, input=20.8, train=14.4)
    decide(run, "decode_cache", False, "choice")
    assert [one.line for one in list_run_advice(run)] == ["optimize: {loader_workers: 1}"]


def test_no_cpu_is_advised_that_the_host_does_not_have(run: Path) -> None:
    phases(run, input=20.8, train=14.4)
    decide(run, "loader_workers", 1)
    change_json(run / "hardware.json", lambda h: h["cpu"].update(host=2))
    assert list_run_advice(run) == []


@pytest.mark.parametrize(
    ("train", "source", "line"),
    [
        (20.0, "choice", "train: {batch_size: auto}"),
        (400.0, "choice", "optimize: {measure: full}"),
        (400.0, "measured", "train: {batch_size: auto}"),
    ],
)
def test_an_idle_gpu(run: Path, train: float, source: str, line: str) -> None:
    """In a short run compiling costs more than it gains, and what was measured needs no advice."""
    write_rows(run / "telemetry.jsonl", [row | {"memory_limit": GIB, "gpu_percent": 60.0} for row in telemetry()])
    phases(run, train=train)
    decide(run, "compile", False, source)
    suggestions = {suggestion.line: suggestion for suggestion in list_run_advice(run)}
    assert says_only(suggestions[line].why, "gpu-idle-time", 40)
    assert "up to up to" not in str(suggestions)
    assert len([suggestion for suggestion in suggestions if "batch_size" in suggestion or "measure" in suggestion]) == 1


def test_at_most_three_the_most_helpful_first(run: Path) -> None:
    phases(run, input=10.4, checkpoint=5.2, train=10.0)
    throttle(run, 0.9)
    advice = list_run_advice(run)
    assert len(advice) == MAX_SUGGESTIONS
    assert [suggestion.weight for suggestion in advice] == sorted(
        (suggestion.weight for suggestion in advice), reverse=True
    )
    assert [suggestion.line.split(":")[0] for suggestion in advice] == ["limits", "optimize", "checkpoint"]


def test_a_short_run_gives_no_advice(run: Path) -> None:
    phases(run, input=2.0, train=2.0)
    change_json(run / "result.json", lambda r: r.update(seconds=6.0))
    assert list_run_advice(run) == []
    write(run)
    assert "| advice |" not in (run / "report.md").read_text(encoding="utf-8")


def test_the_advice_is_in_all_three_files(run: Path) -> None:
    phases(run, input=20.8, train=14.4)
    write(run)
    for name in ("report.html", "report.md", "report.json"):
        assert "optimize: {loader_workers: 1}" in (run / name).read_text(encoding="utf-8")
