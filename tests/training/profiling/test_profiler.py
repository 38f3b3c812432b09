"""The tracer: a trace and its operators, in the report too, and not a bit of the run is changed."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
import safetensors.torch
import torch

from drivetrain.report import write as reports
from drivetrain.report.sections.machine import operators_section
from drivetrain.system.run_files import OPERATORS_FILE
from drivetrain.training.profiling import PROFILED_STEPS, TRACE_FILE, Profiler
from tests import tiny
from tests.messages import says
from tests.supervisor import tiny_run
from tests.supervisor.tiny_run import train


@pytest.fixture(scope="module")
def traced_runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The same job trained twice, with and without a trace."""
    folder = tmp_path_factory.mktemp("traced")
    path = tiny_run.write_job(folder)
    for runs, options in (("with", ["--trace"]), ("without", [])):
        done = train(path, "--runs", str(folder / runs), *options)
        assert done.returncode == 0, done.stdout + done.stderr
    return folder / "with" / "tiny-001", folder / "without" / "tiny-001"


def test_a_traced_run_ends_with_the_same_bits(traced_runs: tuple[Path, Path]) -> None:
    first, second = (safetensors.torch.load_file(run / "model" / "model.safetensors") for run in traced_runs)
    assert all(torch.equal(first[name], second[name]) for name in first)
    rows = [(run / "metrics.jsonl").read_text() for run in traced_runs]
    assert rows[0] == rows[1]
    assert not (traced_runs[1] / TRACE_FILE).exists()


def test_the_trace_holds_the_steps_and_the_operators(traced_runs: tuple[Path, Path]) -> None:
    run = traced_runs[0]
    events = json.loads(gzip.decompress((run / TRACE_FILE).read_bytes()))["traceEvents"]
    names = {event.get("name") for event in events}
    operator_table = json.loads((run / OPERATORS_FILE).read_text())
    assert operator_table["steps"] == PROFILED_STEPS
    assert {row["name"] for row in operator_table["operators"]} <= names
    times = [row["seconds"] for row in operator_table["operators"]]
    assert times == sorted(times, reverse=True)
    assert any("convolution" in row["name"] for row in operator_table["operators"])
    assert (
        next(row for row in operator_table["operators"] if "convolution" in row["name"])["calls"] % PROFILED_STEPS == 0
    )


def test_the_report_shows_the_operators(traced_runs: tuple[Path, Path]) -> None:
    assert "Slowest operators" in (traced_runs[0] / "report.md").read_text()
    assert "Slowest operators" not in (traced_runs[1] / "report.md").read_text()
    (traced_runs[0] / OPERATORS_FILE).write_text("{")
    reports.write(traced_runs[0])
    assert says((traced_runs[0] / "report.md").read_text(), "slowest-operators-shown")


@pytest.mark.parametrize(
    ("name", "library"), [("aten::mkldnn_convolution", "oneDNN"), ("aten::add_", "torch"), ("void gemm()", "")]
)
def test_a_library_is_named_by_its_operators(name: str, library: str) -> None:
    rows = [{"name": name, "seconds": 0.5, "calls": 10}]
    section = operators_section({"steps": 5, "total": 1.0, "device": "cpu", "operators": rows})
    assert section is not None
    assert section.blocks[1].rows == ((name, library, "100", "50 %", "2"),)


def test_an_unwritable_trace_does_not_end_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tiny.assemble_run(tmp_path / "run", tiny.job())
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / TRACE_FILE).mkdir()
    profiler = Profiler(run)
    profiler.warmup_steps = 1
    profiler.step()
    tiny.losses(run, 1)
    profiler.close()
    assert says(capsys.readouterr().out, "trace-is-incomplete")
