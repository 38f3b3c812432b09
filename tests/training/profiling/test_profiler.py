"""The tracer: a trace of some steps, and not a bit of the run is changed."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
import safetensors.torch
import torch

from drivetrain.training.profiling import TRACE_FILE, Profiler
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


def test_the_trace_holds_the_operators(traced_runs: tuple[Path, Path]) -> None:
    events = json.loads(gzip.decompress((traced_runs[0] / TRACE_FILE).read_bytes()))["traceEvents"]
    assert any("convolution" in str(event.get("name")) for event in events)


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
