"""The simple models beside a finished run: they change nothing of it, end in time, and stand in its report."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from drivetrain.cli.main import main
from drivetrain.job_spec import load_job
from drivetrain.job_spec.spec_source import SpecSource
from drivetrain.supervisor import baseline_run, supervisor
from drivetrain.supervisor.supervisor import TrainRequest
from tests.messages import begins_with, says
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


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(baseline_run.SWITCH, "on")
    write_images(tmp_path / "images.npz")
    path = tmp_path / "tiny.yaml"
    path.write_text(TEXT)
    return path


def test_they_stand_beside_the_network_and_change_no_bit_of_it(job: Path) -> None:
    done = train(job, "--set", "baselines=full")
    assert done.returncode == 0, done.stderr
    run = job.parent / "runs" / "tiny-001"
    written = json.loads((run / "baselines.json").read_text())["baselines"]
    rows = {row["name"]: row["metrics"] for row in written}
    assert set(rows) == {"constant", "linear"}
    assert all(row["margins"].keys() == row["metrics"].keys() for row in written)
    announced, *lines = [line for line in done.stdout.splitlines() if line.startswith("baselines: ")]
    assert begins_with(announced, "baselines-fitting-simple-models")
    assert len(lines) == 2
    assert f"{rows['linear']['validation/accuracy']:.4f}" in lines[0]
    assert "Against simple models" in (run / "report.html").read_text()
    assert "Against simple models" in (run / "model-card.md").read_text()
    without = train(job, "--set", "baselines=off", "--new")
    assert without.returncode == 0, without.stderr
    assert "baselines: " not in without.stdout
    other = job.parent / "runs" / "tiny-002"
    assert not (other / "baselines.json").exists()
    assert have_same_weights(run, other)


def test_what_takes_too_long_is_ended_and_what_is_known_counts(
    job: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(job, "--set", "baselines=off").returncode == 0
    run = job.parent / "runs" / "tiny-001"
    monkeypatch.setattr(baseline_run, "MIN_SECONDS", 0.2)
    monkeypatch.setattr(baseline_run, "STARTING_SECONDS", 0.0)
    monkeypatch.setattr(baseline_run, "LEAST_SECONDS", 0.1)
    source = SpecSource(job)
    started = time.monotonic()
    baseline_run.compare(source, source.load(), run)
    assert time.monotonic() - started < 10
    assert "s were over" in capsys.readouterr().out
    assert not (run / "baselines.json").exists()
    # Starting the process and reading the data are not part of the time for computing.
    monkeypatch.setattr(baseline_run, "STARTING_SECONDS", 600.0)
    baseline_run.compare(source, source.load(), run)
    assert "linear model" in capsys.readouterr().out


def test_a_stop_ends_them_and_the_run_is_complete(job: Path) -> None:
    process = subprocess.Popen(
        command(job, "--set", "baselines=full"), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    with process:
        end = time.monotonic() + 120
        while not _is_fitting(process.pid):
            assert time.monotonic() < end
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=60)
    run = job.parent / "runs" / "tiny-001"
    assert process.returncode == 0, output
    assert "stopped by SIGTERM" in output
    assert json.loads((run / "state.json").read_text())["status"] == "done"
    assert (run / "report.html").exists()


def _is_fitting(parent: int) -> bool:
    try:
        children = psutil.Process(parent).children()
        return any(baseline_run.MODULE in child.cmdline() for child in children)
    except psutil.Error:
        return False


def test_data_that_has_changed_since_is_told(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train(job, "--set", "baselines=off").returncode == 0
    run = job.parent / "runs" / "tiny-001"
    (job.parent / "images.npz").unlink()
    write_images(job.parent / "images.npz")
    with (job.parent / "images.npz").open("ab") as file:
        file.write(b"more")
    source = SpecSource(job)
    baseline_run.compare(source, source.load(), run)
    assert says(capsys.readouterr().out, "ended-exit-code", 3)


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
    job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its report was never written."""
    (tmp_path / "result.json").write_text('{"best": {"metric": "validation/rmse", "value": null}, "seconds": 1.0}')
    monkeypatch.setattr(baseline_run, "_fit_in_child", lambda *_: pytest.fail("models are fitted"))
    baseline_run.compare(SpecSource(job), load_job.load(job), tmp_path)
