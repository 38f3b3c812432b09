"""The simple models of a finished run change nothing in it, end in time, and appear in its report."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from drivetrain.baselines import measure, run_comparison, simple_models
from drivetrain.cli.main import main
from drivetrain.job_spec import load_job
from drivetrain.report import baseline_results
from drivetrain.report.baseline_results import Baseline
from drivetrain.supervisor import supervisor
from drivetrain.supervisor.supervisor import TrainRequest
from drivetrain.system.signals import Signals
from drivetrain.training.phase_timer import PhaseTimer
from drivetrain.training.run import Run
from drivetrain.tuning import assembly
from tests.messages import begins_with
from tests.paths import ROOT
from tests.supervisor.tiny_run import command, have_same_weights, train, write_images

TEXT = """
name: tiny
task: image-classification
data: {train: images.npz, validation: 0.25}
model: {name: small-cnn, width: 4}
train: {epochs: 2, batch_size: 16}
optimize: {cpu_threads: 1}
"""


def write_job(folder: Path) -> Path:
    write_images(folder / "images.npz")
    path = folder / "tiny.yaml"
    path.write_text(TEXT)
    return path


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(baseline_results.SWITCH, "on")
    return write_job(tmp_path)


def test_they_stand_beside_the_network_and_change_no_bit_of_it(job: Path) -> None:
    done = train(job, "--set", "baselines=full")
    assert done.returncode == 0, done.stderr
    run = job.parent / "runs" / "tiny-001"
    written = json.loads((run / "result.json").read_text())["baselines"]["baselines"]
    rows = {row["name"]: row["metrics"] for row in written}
    assert set(rows) == {"constant", "linear"}
    assert all(row["margins"].keys() == row["metrics"].keys() for row in written)
    announced, *lines = [line for line in done.stdout.splitlines() if line.startswith("baselines: ")]
    assert begins_with(announced, "baselines-fitting-simple-models")
    assert len(lines) == 2
    assert f"{rows['linear']['validation/accuracy']:.4f}" in lines[0]
    assert "linear model" in (run / "report.html").read_text()
    assert "linear model" in (run / "report.md").read_text()
    without = train(job, "--set", "baselines=off", "--new")
    assert without.returncode == 0, without.stderr
    assert "baselines: " not in without.stdout
    other = job.parent / "runs" / "tiny-002"
    assert "baselines" not in json.loads((other / "result.json").read_text())
    assert "linear model" not in (other / "report.html").read_text()
    assert have_same_weights(run, other)


@pytest.fixture(scope="module")
def trained_job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The job of a run without simple models."""
    path = write_job(tmp_path_factory.mktemp("trained"))
    assert train(path, "--set", "baselines=off").returncode == 0
    return path


@pytest.fixture
def trained(job: Path, trained_job: Path) -> Run:
    """A run that has just ended in this process, without simple models."""
    folder = job.parent / "runs" / "tiny-001"
    shutil.copytree(trained_job.parent / "runs" / "tiny-001", folder)
    return assembly.assemble_run(folder, load_job.load(job), Signals(), PhaseTimer(), is_measured=True)


def test_what_takes_too_long_is_ended_and_what_is_known_counts(
    trained: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run_comparison, "MIN_SECONDS", 0.2)
    monkeypatch.setattr(run_comparison, "GRACE_SECONDS", 0.3)
    monkeypatch.setattr(run_comparison, "LEAST_SECONDS", 0.1)
    fit = measure._fit

    def never_end(*arguments: Any) -> Baseline:
        while True:
            fit(*arguments)

    monkeypatch.setattr(measure, "_fit", never_end)
    started = time.monotonic()
    run_comparison.compare_run(trained)
    assert time.monotonic() - started < 10
    out = capsys.readouterr().out
    assert "not all were fitted in" in out
    assert "network" in out
    assert [row["name"] for row in read_baselines(trained)] == ["constant"]


def read_baselines(run: Run) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((run.folder / "result.json").read_text())["baselines"]["baselines"]
    return rows


def test_what_fails_is_told_and_what_is_known_counts(
    trained: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: Any) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr(simple_models, "fit_linear", fail)
    run_comparison.compare_run(trained)
    assert "no room" in capsys.readouterr().out
    assert [row["name"] for row in read_baselines(trained)] == ["constant"]


@pytest.mark.parametrize(
    ("action", "cause"),
    [
        ("term", "stopped by SIGTERM"),
        pytest.param("twice", "stopped by SIGTERM", marks=pytest.mark.nightly),
        ("kill", "137"),
    ],
)
def test_a_stop_or_death_ends_them_and_the_run_is_complete(job: Path, action: str, cause: str) -> None:
    words = [sys.executable, "-m", "tests.faults.driver", *command(job)[3:]]
    environment = os.environ | {"FAULT": f"baselines:1:{action}"}
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120, env=environment)
    run = job.parent / "runs" / "tiny-001"
    assert done.returncode == 0, done.stderr
    assert cause in done.stdout
    assert json.loads((run / "state.json").read_text())["status"] == "done"
    assert (run / "report.html").exists()


def test_a_job_alone_has_its_first_number_without_a_run(job: Path) -> None:
    done = subprocess.run(
        [*command(job)[:3], "bench", "models", str(job), "--json"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["metric"] == "validation/accuracy"
    assert [row["name"] for row in result["baselines"]] == ["constant", "linear"]
    assert not (job.parent / "runs").exists()


def test_a_batch_script_may_name_a_copy_of_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Slurm's script does."""
    requests: list[TrainRequest] = []
    monkeypatch.setattr(supervisor, "train", lambda request: requests.append(request) or 0)
    monkeypatch.setenv("DRIVETRAIN_JOB_COPY", "copies/1")
    assert main(["train", str(ROOT / "jobs" / "digits.yaml")]) == 0
    assert requests[0].source.copy == Path("copies/1")


def test_a_run_whose_metric_was_never_a_number_is_compared_with_nothing(
    trained: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its report was never written."""
    (trained.folder / "result.json").write_text(
        '{"best": {"metric": "validation/rmse", "value": null}, "seconds": 1.0}'
    )
    monkeypatch.setattr(run_comparison, "_fit", lambda *_: pytest.fail("models are fitted"))
    run_comparison.compare_run(trained)
