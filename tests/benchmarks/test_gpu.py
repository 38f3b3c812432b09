"""The script for a GPU machine, tried out on this one; and the page that it writes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from runtime.hardware import facts
from tests import tiny
from tests.paths import ROOT

H200 = facts.load(ROOT / "tests" / "machines" / "h200.json")


@pytest.mark.nightly
def test_the_gpu_benchmark_runs_in_smoke_mode(tmp_path: Path) -> None:
    command = [
        sys.executable,
        str(ROOT / "benchmarks" / "gpu.py"),
        "--smoke",
        "--rows",
        "mlp",
        "--out",
        str(tmp_path / "out"),
        "--folder",
        str(tmp_path / "work"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (path,) = (tmp_path / "out").glob("gpu-cpu-*.json")
    found = json.loads(path.read_text())
    one, two = found["rows"]["mlp"]["tutorial"], found["rows"]["mlp"]["plan"]
    both = min(len(one["losses"]), len(two["losses"]))  # how far each gets is a matter of time
    assert both >= 20
    assert one["losses"][:both] == pytest.approx(two["losses"][:both], rel=1e-3)
    assert two["plan"]["precision"] == "fp32"
    assert one["samples_per_second"] > 0
    assert "TF32 needs an NVIDIA GPU" in found["precisions"]["tf32"]["missing"]
    text = path.with_suffix(".md").read_text()
    assert "these figures say nothing" in text
    assert "| small MLP | 8 |" in text
    assert "- a vision row: not measured, 5x wanted" in text


@pytest.mark.skipif(bool(tiny.machine().gpu), reason="there is a GPU")
def test_without_a_gpu_it_says_so(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "gpu.py"), "--folder", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 9
    assert done.stderr.startswith("no GPU can be used here")


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import gpu_page

    return gpu_page


def arm(speed: float, peak: int, **more: Any) -> dict[str, Any]:
    return {
        "torch": "2.11.0",
        "samples_per_second": speed,
        "peak": peak << 30,
        "busy": 93.0,
        "waits_per_step": 1.0,
        "first_step": 12.0,
        "median_step": 0.010,
        "losses": [1.0 / n for n in range(1, 61)],
        **more,
    }


def test_the_page_of_a_gpu(pages: ModuleType) -> None:
    rows = {
        "resnet18": {"tutorial": arm(1000, 10), "plan": arm(5200, 5, plan={"precision": "bf16", "compile": True})},
        "cnn-lstm": {"tutorial": arm(1000, 10), "plan": {"missing": "failed: lost"}},
    }
    precisions = {"fp32": arm(1000, 10), "tf32": arm(1500, 10), "fp16": {"missing": "not measured, the time was spent"}}
    found = {
        "date": "2026-01-02",
        "smoke": False,
        "seconds": 400.0,
        "rows": rows,
        "precisions": precisions,
        "compiled": {"resnet18": arm(1, 1, median_step=0.008, first_step=32.0), "cnn-lstm": {"missing": "no time"}},
        "curves": "resnet18",
    }
    text = pages.page(found, H200)
    assert pages.slug(H200) == "nvidia-h200"
    for line in (
        "# NVIDIA H200, 2026-01-02",
        "capability 9.0, 140.4 GiB, driver 580.159.03, torch 2.11.0, 16 CPUs, 400 s in all.",
        "| ResNet-18, 224 px | 128 | 1,000 | 5,200 | 5.20 | 10.0 GiB | 5.0 GiB | 93, 93 | 1.0, 1.0 | 12.0, 12.0 | "
        "0.0167, 0.0167 after 60 |",
        "- cnn-lstm, plan: failed: lost",
        "- resnet18: precision bf16, compile true",
        "| step | fp32 | tf32 |",
        "| 10 | 0.1000 | 0.1000 |",
        "- fp16: not measured, the time was spent",
        "| ResNet-18, 224 px | 10.0 ms | 8.0 ms | 12.0 s | 32.0 s | 10,000 steps |",
        "- cnn-lstm: no time",
        "- a vision row: 5.20x, 5x wanted: reached",
        "- CNN-LSTM: not measured, 2.5x wanted",
        "- less memory on a row: 0.50, 0.4 wanted: reached",
    ):
        assert line in text, line
