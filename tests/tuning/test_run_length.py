"""`train.within`: the length of a run from timed steps, and a schedule that ends with it."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

import drivetrain
from drivetrain.errors import SpecError
from drivetrain.job.train import Train
from drivetrain.job_spec import load_job
from drivetrain.job_spec.spec_source import SpecSource
from drivetrain.plan import plan
from drivetrain.system.files import write_json
from drivetrain.training.run import Run
from drivetrain.tuning import run_length
from drivetrain.tuning.measuring_child import MeasuringCall
from drivetrain.tuning.processes import run_times
from drivetrain.tuning.run_length import RunTimes
from tests import tiny
from tests.messages import says
from tests.paths import ROOT

TEXT = """
name: tiny
task: image-classification
data: {train: images.npz, validation: 0.2}
model: {name: small-cnn, width: 4}
train: {within: 90s, optimizer: {name: adamw, lr: 0.01}}
optimize: {cpu_threads: 1, measure: off}
baselines: off
"""
TIMES = RunTimes(start=5.0, step=0.1, evaluation=1.0, steps_per_epoch=50, peak_bytes=2**20)


def write_job(folder: Path) -> Path:
    images = np.random.default_rng(0).integers(0, 255, (440, 8, 8)).astype(np.uint8)
    np.savez(folder / "images.npz", images=images, labels=np.arange(440) % 3)
    (folder / "tiny.yaml").write_text(TEXT)
    return folder / "tiny.yaml"


def run_drivetrain(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "drivetrain", *arguments]
    runs = ("--runs", str(folder / "runs")) if arguments[0] == "train" else ()
    return subprocess.run([*command, *runs], cwd=ROOT, capture_output=True, text=True, check=False, timeout=240)


@pytest.mark.parametrize("seed", range(200))
def test_the_steps_that_fit_end_in_time(seed: int) -> None:
    drawn = np.random.default_rng(seed)
    step, evaluation, per_epoch = drawn.uniform(0.001, 10), drawn.uniform(0, 30), int(drawn.integers(1, 500))
    seconds = drawn.uniform(0, 5000)
    times = RunTimes(0.0, step, evaluation, per_epoch, 0)
    steps = times.fit_steps(seconds)
    assert steps >= 0
    if steps:
        assert times.train_seconds(steps) <= seconds * (1 + 1e-9) + 1e-9
        assert times.train_seconds(steps + 1) > seconds * (1 - 1e-9) - 1e-9


def test_the_length_follows_from_the_time_and_is_bounded(tmp_path: Path) -> None:
    path = write_job(tmp_path)
    lengths = {
        within: run_length.choose_length(load_job.load(path, [f"train.within={within}", "baselines=auto"]), TIMES, 2.0)
        for within in ("60s", "5m", "24h")
    }
    # 60 s less 5 %, what has passed, start, end and a tenth for the simple models leave 37 s: 6 epochs of 6 s.
    assert lengths["60s"] == {"epochs": 6, "steps": 300}
    without = load_job.load(path, ["train.within=60s"])
    assert run_length.choose_length(without, TIMES, 2.0) == {"epochs": 7, "steps": 350}
    # Of a longer time a twentieth is left to them.
    assert lengths["5m"]["steps"] == TIMES.fit_steps(300 * 0.95 - 2 - TIMES.start - run_length.ENDING_SECONDS - 15)
    assert lengths["5m"]["epochs"] == -(-lengths["5m"]["steps"] // 50)
    assert lengths["24h"] == {"epochs": 100, "steps": 5000}
    with pytest.raises(SpecError) as error:
        run_length.choose_length(load_job.load(path, ["train.within=10s"]), TIMES, 2.0)
    (problem,) = error.value.problems
    assert problem.key == "train.within"
    assert says(problem.given, "epoch-ends-after", 21)


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


def test_later_runs_get_the_length_that_the_first_one_has_had(tmp_path: Path) -> None:
    """A mean over seeds was one over runs of different lengths."""
    job, run = load_job.load(write_job(tmp_path)), tmp_path / "run"
    run.mkdir()
    assert run_length.pin_measured(job, [run]) == ()
    stored = {"epochs": 8, "steps": 400, "times": {"steps_per_epoch": 50}}
    (run / "run_length.json").write_text(json.dumps(stored))
    planned = ("train.within=null", "train.epochs=8", "train.steps=400")
    assert run_length.pin_measured(job, [run]) == planned
    (run / "result.json").write_text(json.dumps({"length_changes": []}))
    assert run_length.pin_measured(job, [run]) == planned
    (run / "result.json").write_text(json.dumps({"length_changes": [[50, 380], [100, 260]]}))
    assert run_length.pin_measured(job, [run]) == ("train.within=null", "train.epochs=6", "train.steps=260")


def test_the_library_refuses_it() -> None:
    data = TensorDataset(torch.zeros(8, 2), torch.zeros(8, dtype=torch.long))
    with pytest.raises(SpecError, match=r"within: is 5m, which drivetrain.train cannot measure"):
        drivetrain.train(torch.nn.Linear(2, 2), data, data, name="x", within="5m")


def test_a_run_within_a_time_resumes_with_its_length_and_ends_its_schedule(tmp_path: Path) -> None:
    spec = str(write_job(tmp_path))
    stopped = run_drivetrain(tmp_path, "train", spec, "--set", "train.max_time=0.001s")
    assert stopped.returncode == 75, stopped.stdout + stopped.stderr
    run_folder = tmp_path / "runs" / "tiny-001"
    length = json.loads((run_folder / "run_length.json").read_text())
    assert length["steps"] <= length["epochs"] * length["times"]["steps_per_epoch"] <= 1200
    done = run_drivetrain(tmp_path, "train", spec)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "within: timing" not in done.stdout
    assert json.loads((run_folder / "run_length.json").read_text()) == length
    rows = [json.loads(line) for line in (run_folder / "metrics.jsonl").read_text().splitlines()]
    rates = [row["lr"] for row in rows if "lr" in row]
    # One-cycle ends at a ten-thousandth of its peak, at whatever step the run has ended.
    assert max(rates) == pytest.approx(0.01, rel=0.05)
    assert rates[-1] < 0.0005
    forecast, result = length["forecast"], json.loads((run_folder / "result.json").read_text())
    compared_forecast = result["forecast"]
    assert compared_forecast == forecast | {
        "error_percent": pytest.approx(100 * (forecast["seconds"] / result["seconds"] - 1), abs=0.1),
        "peak_memory_error_percent": pytest.approx(
            100 * (forecast["peak_memory"] / result["peak_memory"] - 1), abs=0.1
        ),
        "ended": compared_forecast["ended"],
    }
    assert json.loads((run_folder / "report.json").read_text())["forecast"] == compared_forecast
    changes = [line for line in (run_folder / "events.jsonl").read_text().splitlines() if "steps instead of" in line]
    assert changes or rows[-1]["step"] == length["steps"]


def test_layers_may_be_unfrozen_in_any_epoch_before_the_length_is_known(tmp_path: Path) -> None:
    """The default of train.epochs, 10, is not the length of such a run."""
    path = write_job(tmp_path)
    unfrozen_late = 'model={name: small-cnn, width: 4, freeze: {body: true}, unfreeze: [{epoch: 12, names: ["*"]}]}'
    assert load_job.load(path, [unfrozen_late]).train.within == "90s"
    with pytest.raises(SpecError, match="the run has 10 epochs"):
        load_job.load(path, [unfrozen_late, "train.within=null"])


def test_a_timed_run_has_one_network_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def count_networks(run: Run, start_seconds: float) -> RunTimes:
        gc.collect()
        networks = [
            tracked for tracked in gc.get_objects() if type(tracked) is type(run.model) and id(tracked) not in earlier
        ]
        counts.append(len(networks))
        return TIMES

    counts: list[int] = []
    gc.collect()
    earlier = {id(tracked) for tracked in gc.get_objects()}  # networks that other tests keep
    job, machine = load_job.load(write_job(tmp_path), ["train.within=null", "train.epochs=1"]), tiny.machine()
    write_json(tmp_path / "hardware.json", machine.to_json())
    write_json(tmp_path / "plan.json", plan.resolve(job, machine, plain=True).to_json())
    monkeypatch.setattr(run_times, "time_run", count_networks)
    run_times.measure(MeasuringCall(tmp_path, SpecSource(tmp_path / "tiny.yaml", []), job, tiny.QuietSignals()))
    assert counts == [1]
