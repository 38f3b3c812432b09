"""Runs with `train.within`: refusals, and trainings that end with their time and their schedule."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

import drivetrain
from drivetrain.errors import SpecError
from drivetrain.job.train import Train
from drivetrain.job_spec import load_job
from drivetrain.system.run_files import RunFiles
from tests.messages import says
from tests.paths import ROOT

TEXT = """
name: tiny
task: image-classification
data: {train: images.npz, validation: 0.2}
model: {name: small-cnn, width: 4}
train: {within: 90s, optimizer: {name: adamw, lr: 0.01}}
optimize: {cpu_threads: 1, measure: off}
limits: {gpus: none}
baselines: off
"""


def write_job(folder: Path, samples: int = 440) -> Path:
    images = np.random.default_rng(0).integers(0, 255, (samples, 8, 8)).astype(np.uint8)
    np.savez(folder / "images.npz", images=images, labels=np.arange(samples) % 3)
    (folder / "tiny.yaml").write_text(TEXT)
    return folder / "tiny.yaml"


def train(job: Path, *settings: str) -> subprocess.CompletedProcess[str]:
    options = [word for setting in settings for word in ("--set", setting)]
    command = [sys.executable, "-m", "drivetrain", "train", str(job), "--runs", str(job.parent / "runs"), *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=240)


def read_rates(run: Path) -> list[float]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [row["lr"] for row in rows if "lr" in row]


@pytest.mark.parametrize("key", ["epochs", "steps"])
def test_a_length_beside_the_time_is_refused(tmp_path: Path, key: str) -> None:
    path, both = write_job(tmp_path), [f"train.{key}=7", "train.within=5m"]
    (tmp_path / "both.yaml").write_text(TEXT.replace("{within: 90s", f"{{within: 90s, {key}: 7"))
    for spec, assignments in ((path, both), (path, both[::-1]), (tmp_path / "both.yaml", ["train.seed=1"])):
        with pytest.raises(SpecError) as error:
            load_job.load(spec, assignments)
        assert [problem.key for problem in error.value.problems] == [f"train.{key}"]


@pytest.mark.parametrize("key", ["epochs", "steps"])
def test_the_length_of_the_command_line_takes_the_place_of_that_in_the_file(tmp_path: Path, key: str) -> None:
    path = write_job(tmp_path)
    job = load_job.load(path, [f"train.{key}=7"])
    assert (job.train.within, getattr(job.train, key)) == (None, 7)
    assert says(job.document.replaced, "set-takes-place-of", key, 7, "within", "'90s'")
    path.write_text(TEXT.replace("within: 90s", f"{key}: 7"))
    job = load_job.load(path, ["train.within=5m"])
    assert (job.train.within, getattr(job.train, key)) == ("5m", Train.model_fields[key].default)
    assert says(job.document.replaced, "set-takes-place-of", "within", "'5m'", key, 7)
    for assignments in ([], ["train.within=null"], ["train.seed=1"]):
        job = load_job.load(path, assignments)
        assert (job.train.within, getattr(job.train, key), job.document.replaced) == (None, 7, [])


def test_a_schedule_that_counts_epochs_beside_the_time_is_refused(tmp_path: Path) -> None:
    path = write_job(tmp_path)
    with pytest.raises(SpecError) as error:
        load_job.load(path, ["train.schedule={name: step, epochs: 3}"])
    (problem,) = error.value.problems
    assert problem.key == "train.schedule"
    assert says(problem.given, "schedule-counts-epochs", "step", "90s")
    for name in problem.possible.split(", "):
        load_job.load(path, [f"train.schedule={name}"])


def test_layers_may_be_unfrozen_in_any_epoch(tmp_path: Path) -> None:
    """The default of train.epochs, 10, is not the length of such a run."""
    path = write_job(tmp_path)
    unfrozen_late = 'model={name: small-cnn, width: 4, freeze: {body: true}, unfreeze: [{epoch: 12, names: ["*"]}]}'
    assert load_job.load(path, [unfrozen_late]).train.within == "90s"
    with pytest.raises(SpecError, match="the run has 10 epochs"):
        load_job.load(path, [unfrozen_late, "train.within=null"])


@pytest.mark.nightly
def test_a_stopped_run_resumes_with_its_time_and_ends_its_schedule(tmp_path: Path) -> None:
    spec = write_job(tmp_path, 2000)
    stopped = train(spec, "train.within=35s", "train.max_time=6s")
    assert stopped.returncode == 75, stopped.stdout + stopped.stderr
    run = tmp_path / "runs" / "tiny-001"
    begin = time.monotonic()
    done = train(spec, "train.within=35s")
    assert done.returncode == 0, done.stdout + done.stderr
    result = RunFiles(run).read_object("result.json")
    assert says(done.stdout, "of-train-within-steps", "35s", result["steps"])
    # The first command used some of the time.
    assert time.monotonic() - begin <= 35
    assert result["within_seconds"] <= 35
    rates = read_rates(run)
    assert len(rates) == result["steps"]
    assert max(rates) == pytest.approx(0.01, rel=0.05)
    # The last step was a step's share away from the end of one-cycle, at a ten-thousandth of its peak.
    assert result["epochs"] == 100 or rates[-1] < 0.0005


@pytest.mark.nightly
def test_processes_follow_the_time_of_the_first_one(tmp_path: Path) -> None:
    done = train(write_job(tmp_path, 2000), "train.within=60s", "limits.processes=2")
    assert done.returncode == 0, done.stdout + done.stderr
    rates = read_rates(tmp_path / "runs" / "tiny-001")
    assert max(rates) == pytest.approx(0.01, rel=0.05)


def test_a_program_trains_for_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    data = TensorDataset(torch.randn(64, 2), torch.arange(64) % 2)
    result = drivetrain.train(torch.nn.Linear(2, 2), data, data, name="x", within="10s")
    assert result.stopped.startswith("of train.within: 10s")
    assert RunFiles(result.folder).read_object("result.json")["epochs"] <= 100
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3)
    parts: dict[str, Any] = {"optimizer": optimizer, "schedule": schedule, "schedule_every": "epoch"}
    with pytest.raises(SpecError, match="counts epochs or steps"):
        drivetrain.train(model, data, data, name="y", within="5m", **parts)
