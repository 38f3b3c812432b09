"""The rows for a GPU machine: all of them tried out on this one, what is kept of them, and the page."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests import tiny, waiting
from tests.messages import begins_with, get_message, says
from tests.paths import ROOT

SCRIPT = str(ROOT / "benchmarks" / "gpu.py")


@pytest.mark.nightly
def test_all_rows_pass_in_a_trial(tmp_path: Path) -> None:
    command = [sys.executable, SCRIPT, str(tmp_path / "out"), "--smoke", "--folder", str(tmp_path / "data")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    rows = {row["row"]: row for row in map(json.loads, (tmp_path / "out" / "rows.jsonl").read_text().splitlines())}
    gpu_rows = load_module("gpu_rows")
    assert set(rows) == {name for name, _ in gpu_rows.list_rows()}
    for network in ("mlp", "bert", "cnn-lstm", "resnet18", "resnet50", "resnet-small"):
        for name in (f"ours:{network}:default", f"reference:{network}:eager", f"reference:{network}:graph"):
            assert rows[name]["samples_per_second"] > 0, name
    assert all(rows[f"bits:{network}"]["same_bits"] for network in ("mlp", "resnet-small", "cnn-lstm"))
    assert rows["tests"]["exit_code"] == 0
    assert says((tmp_path / "out" / "page.md").read_text(), "these-figures-say-nothing")


@pytest.mark.skipif(bool(tiny.machine().gpu), reason="there is a GPU")
def test_without_a_gpu_it_says_so(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, SCRIPT, str(tmp_path)], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 9
    assert begins_with(done.stderr, "no-gpu-can-be-used-here")


def load_module(name: str) -> ModuleType:
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        return __import__(name)
    finally:
        sys.path.pop(0)


@pytest.mark.parametrize("speeds", [[15.0, 0.0, 0.0], [0.0, 15.0], [15.0]])
def test_a_run_that_ends_in_its_evaluation_has_a_speed(tmp_path: Path, speeds: list[float]) -> None:
    rows = [json.dumps({"samples_per_second": speed, "gpu_percent": None}) for speed in speeds]
    (tmp_path / "telemetry.jsonl").write_text("\n".join(rows) + "\n")
    (tmp_path / "metrics.jsonl").write_text('{"step": 3, "train/loss": 0.5}\n')
    (tmp_path / "plan.json").write_text('{"decisions": []}')
    events = [{"kind": "step_graph", "text": "a step could not be captured"}, {"kind": "start", "text": "attempt 1"}]
    (tmp_path / "events.jsonl").write_text("".join(f"{json.dumps(event)}\n" for event in events))
    figures = load_module("gpu_arm").read_figures_of_run(tmp_path)
    assert (figures["samples_per_second"], figures["events"]) == (15.0, [events[0]["text"]])


CARD = {"chip": "Tesla T4", "driver": "580.1", "torch": "2.13.0"}


def runner(tmp_path: Path, **options: Any) -> Any:
    usual = {"out": tmp_path, "folder": tmp_path, "minutes": 25.0, "only": None, "smoke": False}
    return load_module("gpu").RowRunner(argparse.Namespace(**usual | options), CARD)


@pytest.fixture
def measured_speed(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What rows measure, without a process."""
    figures: dict[str, Any] = {"samples_per_second": 1.5}
    monkeypatch.setattr(load_module("gpu"), "measure_in_process", lambda *_: figures)
    return figures


@pytest.mark.usefixtures("measured_speed")
def test_rows_that_are_known_are_not_measured_again(tmp_path: Path) -> None:
    """Those of another card or torch are, and a line that was cut off with its machine."""
    lines = [{"row": "ours:mlp:default", **CARD}, {"row": "ours:bert:default", **CARD, "torch": "2.7.1"}]
    text = "\n".join(map(json.dumps, lines)) + '\n{"row": "ceilings", "chip": "Tes'
    (tmp_path / "rows.jsonl").write_text(text + "\n")
    measured = runner(tmp_path)
    assert measured.run("ours:mlp:default", 60) is None
    assert measured.run("ours:bert:default", 60)["samples_per_second"] == 1.5
    assert measured.run("ceilings", 60) is not None
    assert runner(tmp_path).run("ceilings", 60) is None
    assert "| BERT-base shape, ragged texts | 2 |" in (tmp_path / "page.md").read_text()
    assert "2.7.1" in (tmp_path / "rows.jsonl").read_text()


@pytest.mark.usefixtures("measured_speed")
def test_rows_are_chosen_and_end_with_the_time(tmp_path: Path) -> None:
    assert runner(tmp_path, only=["ours:bert"]).run("ours:mlp:default", 60) is None
    assert runner(tmp_path, minutes=0.2).run("ours:mlp:default", 60) is None
    assert not (tmp_path / "rows.jsonl").exists()


def test_a_row_that_fails_is_kept_with_its_reason_and_tried_again(tmp_path: Path) -> None:
    row = runner(tmp_path).run("no such kind", 60)
    assert "KeyError" in row["failed"]
    assert "KeyError" in (tmp_path / "rows.jsonl").read_text()
    assert runner(tmp_path).rows.measured == set()


@pytest.mark.usefixtures("measured_speed")
def test_a_row_that_does_not_fit_is_left_for_a_shorter_one(tmp_path: Path) -> None:
    """Cut short it would be kept as failed, for want of time that another call has."""
    measured = runner(tmp_path, minutes=1.5)
    assert measured.run("tests", 240) is None
    assert measured.run("bits:mlp", 60) is not None


def test_a_row_over_its_limit_ends_with_what_it_has_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = load_module("gpu")
    (tmp_path / "gpu_arm.py").write_text(
        "import pathlib, subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "pathlib.Path(sys.argv[3], 'child').write_text(str(child.pid))\n"
        "time.sleep(60)\n"
    )
    monkeypatch.setattr(gpu, "BENCHMARKS", tmp_path)
    options = argparse.Namespace(out=tmp_path, folder=tmp_path, smoke=False)
    assert gpu.measure_in_process("tests", 1, options) == {"failed": get_message("were-not-enough", 1)}
    status = Path("/proc", (tmp_path / "child").read_text(), "status")
    # A killed process is gone when it is scheduled the next time.
    waiting.wait_until(lambda: not status.exists() or "State:\tZ" in status.read_text(), seconds=30)


def test_the_page_of_a_gpu(tmp_path: Path) -> None:
    def row(name: str, **figures: Any) -> dict[str, Any]:
        return {"row": name, **CARD, "seconds": 9.0, **figures}

    ours = {"gpu_allocated": 5 << 30, "gpu_reserved": 6 << 30, "losses": [1.0, 0.5], "plan": {"precision": "bf16"}}
    rows = [
        row("ceilings", launch_us=10.0, copy_gbs=2000.5),
        row("ours:resnet18:default", samples_per_second=900.0, **ours),
        row("ours:resnet18:step-graph", samples_per_second=950.0, **ours),
        row("reference:resnet18:eager", samples_per_second=800.0, ms_per_step=20.0, kernels_per_step=300.0)
        | {"kernel_ms_per_step": 2.5, "waits_per_step": 0.0, "peak_bytes": 4 << 30},
        row("reference:resnet18:compiled", samples_per_second=1000.0),
        row("lightning:resnet18:tuned", samples_per_second=500.0),
        row("bits:mlp", same_bits=True, largest_difference_of_loss=0.0),
        row("ours:bert:packed", missing="exit 2: no such | key"),
    ]
    path = tmp_path / "page.md"
    load_module("gpu_page").write_page(rows, path)
    text = path.read_text()
    for line in (
        "# Tesla T4, driver 580.1, torch 2.13.0",
        "| ResNet-18, 224 px | 900 | 950 | 800 | - | 1,000 | 500 | - | - | 0.95 |",
        "| ResNet-18, 224 px | by hand | 300 | 2.50 | 3.00 | 0.00 | 20.00 | 4.0 GiB |",
        "| ResNet-18, 224 px | default | 900 | 5.0 GiB | 6.0 GiB | 0.5000 | precision bf16 |",
        "- bits:mlp: same_bits True, largest_difference_of_loss 0",
        "- G1, ResNet-18, 224 px: 0.95 of the best loop by hand, 0.95 wanted: reached, 1.90 of the best tuned peer",
        "- G2, ResNet-50, 224 px: - of the best loop by hand, 0.97 wanted: not measured",
        "- ours:bert:packed: exit 2: no such / key",
        "- ours:mlp:default: its turn did not come",
    ):
        assert line in text, line
