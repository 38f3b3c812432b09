"""`drivetrain tradeoffs`: which variants a job has, which trainings of them run in the time, and what is said of them.

Most tests have a trainer that only writes what a real one would.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from drivetrain.cli import main
from drivetrain.errors import DeviceError, OutOfMemory, SpecError, Stopped
from drivetrain.job_spec import load_job as job_spec
from drivetrain.plan import plan as plans
from drivetrain.supervisor import run_folder, supervisor
from drivetrain.supervisor.supervisor import TrainRequest
from drivetrain.supervisor.tradeoffs import tradeoffs
from drivetrain.supervisor.tradeoffs.variants import (
    Measured,
    Training,
    Variant,
    compare,
    find_front,
    list_variants,
    read_training,
)
from tests import tiny
from tests.faults import small_job
from tests.report_page import Page

ABOUT_STEPS = {"half the epochs", "early stopping", "twice the batch", "four times the batch", "bf16"}
"""Variants that a job without steps does not have."""
ACCURACY = "validation/accuracy"
FOUR_TIMES, HALF_SIZE = "four times the batch", "half the image size"
JOBS = Path(__file__).parents[2] / "jobs"


class Trainer:
    """In place of the training: the accuracy grows with the epochs, and falls with the batch size."""

    def __init__(self) -> None:
        self.runs: list[str] = []
        self.behaviour: Callable[[TrainRequest], int] = lambda request: 0

    def train(self, request: TrainRequest) -> int:
        job = request.source.load()
        if code := self.behaviour(request):
            return code
        new_run = run_folder.open_run(request.runs, job, new=request.new)
        os.close(new_run.lock)
        self.runs.append(new_run.path.name)
        epochs, size = job.train.epochs, job.train.batch_size
        assert isinstance(size, int)
        scores = {ACCURACY: 0.5 + epochs / 100 - size / 10_000 + job.train.seed / 1000}
        result = {
            "best": {"metric": ACCURACY, "value": 0.5, "step": 1, "epoch": 0, "metrics": scores},
            "epochs": epochs,
            "seconds": 5 + epochs,
            "phases": {"import": 5, "train": 0.75 * epochs, "evaluate": 0.25 * epochs},
        }
        files = {
            "result.json": result,
            "state.json": {"status": "done"},
            "plan.json": plans.resolve(job, tiny.machine(), plain=False).to_json(),
            "preprocessing.json": {"preprocessing": {"image_size": 64}},
            "data.json": {"files": {}},
        }
        for name, content in files.items():
            (new_run.path / name).write_text(json.dumps(content))
        return 0


@pytest.fixture
def trainer(monkeypatch: pytest.MonkeyPatch) -> Trainer:
    trainer = Trainer()
    monkeypatch.setattr(supervisor, "train", trainer.train)
    return trainer


def run(job: Path, *options: str) -> int:
    return main.main(["tradeoffs", str(job), "--runs", str(job.parent / "runs"), *options])


def read(job: Path) -> dict[str, dict[str, Any]]:
    content = json.loads((job.parent / "runs" / "small-tradeoffs" / "tradeoffs.json").read_text())
    return {line["name"]: line for line in content["lines"]}


@pytest.mark.machine("vm-2core-cgroup1")
def test_all_variants_are_trained_in_full_if_the_time_is_enough(tmp_path: Path, trainer: Trainer) -> None:
    job = small_job.write_job(tmp_path, epochs="16", batch_size="32")
    assert run(job) == 0
    lines = read(job)
    assert lines["as it is"]["seconds"] == 21
    assert lines["half the epochs"]["seconds"] == 13
    assert {line["share"] for line in lines.values()} == {1.0}
    assert lines["twice the batch"]["difference"][0] == pytest.approx(-0.0032)
    assert lines["half the epochs"]["is_front"]
    assert not lines[FOUR_TIMES]["is_front"]
    page = Page((tmp_path / "runs" / "small-tradeoffs" / "tradeoffs.html").read_text())
    assert "svg" in page.tags
    assert "half-the-epochs-e8-s2-001" in trainer.runs, "three seeds of what is faster"
    before = len(trainer.runs)
    assert run(job) == 0
    assert len(trainer.runs) == before, "the same command finds all of them"


@pytest.mark.machine("vm-2core-cgroup1")
def test_less_time_trains_fewer_epochs_and_only_the_better_half_longer(
    tmp_path: Path, trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]

    def take_time(request: TrainRequest) -> int:
        clock[0] += 5 + request.source.load().train.epochs
        return 0

    trainer.behaviour = take_time
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    job = small_job.write_job(tmp_path, epochs="100", batch_size="32")
    assert run(job, "--within", "12m") == 0
    assert clock[0] <= 720
    lines = read(job)
    shares = {name: line["share"] for name, line in lines.items()}
    assert shares["as it is"] == max(shares.values())
    assert shares[FOUR_TIMES] < shares["half the epochs"]
    assert all(line["difference"] for line in lines.values())


def test_values_that_this_machine_refuses_are_a_result(tmp_path: Path, trainer: Trainer) -> None:
    def refuse_bf16(request: TrainRequest) -> int:
        if request.source.load().optimize.get("precision") == "bf16":
            raise DeviceError("bf16: no instructions", "fp32", "use it")
        return 0

    trainer.behaviour = refuse_bf16
    job = small_job.write_job(tmp_path, epochs="4", batch_size="32")
    assert run(job) == 0
    line = read(job)["bf16"]
    assert (line["failure"], line["seconds"]) == ("bf16: no instructions", None)


@pytest.mark.parametrize("code", [3, Stopped.exit_code])
def test_what_is_not_the_fault_of_a_variant_ends_the_command(tmp_path: Path, trainer: Trainer, code: int) -> None:
    trainer.behaviour = lambda request: code if len(trainer.runs) == 2 else 0
    job = small_job.write_job(tmp_path, epochs="4", batch_size="32")
    assert run(job) == code
    trainer.behaviour = lambda request: 0
    assert run(job) == 0
    assert len(trainer.runs) == len(set(trainer.runs)), "nothing was trained twice"


def test_memory_that_runs_out_is_the_result_of_a_variant(tmp_path: Path, trainer: Trainer) -> None:
    trainer.behaviour = lambda request: OutOfMemory.exit_code if request.source.load().train.batch_size == 128 else 0
    job = small_job.write_job(tmp_path, epochs="4", batch_size="32")
    assert run(job) == 0
    assert read(job)[FOUR_TIMES]["failure"]
    assert read(job)["twice the batch"]["share"] == 1.0


@pytest.mark.parametrize(
    ("job", "preprocessing", "expected"),
    [
        ("reports", {"max_length": 64}, {"half the text length": {"data.max_length": 32}, "a linear model": {"model": "linear"}}),
        ("patterns", {"image_size": 64}, {HALF_SIZE: {"data.image_size": 32}, "half the width": {"model.width": 8}}),
        ("series", {}, {"half the LSTM": {"model.lstm_hidden": 32}, "no augmentation": {"data.augment": {}}}),
        ("table", {}, {"one hidden layer": None, "a linear model": {"model": "linear"}}),
    ],
)  # fmt: skip
def test_the_example_jobs_have_variants_that_are_valid_jobs(
    job: str, preprocessing: dict[str, int], expected: dict[str, object]
) -> None:
    loaded = job_spec.check(job_spec.read_spec(JOBS / f"{job}.yaml", ()))
    variants = list_variants(loaded, preprocessing, "fp32")
    values = {variant.name: variant.values for variant in variants}
    for name, changes in expected.items():
        assert changes is None or values[name] == changes
    for variant in variants:
        job_spec.check(job_spec.read_spec(JOBS / f"{job}.yaml", variant.assignments()))
    solved = {variant.name for variant in list_variants(loaded, preprocessing, "fp32", is_solved=True)}
    assert values.keys() - solved == ABOUT_STEPS & values.keys()


def test_a_variant_is_compared_with_as_long_a_training_of_the_same_seed() -> None:
    def train(share: float, seed: int, value: float) -> Training:
        return Training(share, seed, value, 1.0, 5.0, 1.0, 0.0)

    baseline = Measured(Variant("as it is"), 8, 8, 2, [train(0.5, 0, 0.7), train(1.0, 0, 0.8), train(1.0, 1, 0.82)])
    other = Measured(
        Variant("x"), 4, 8, 2, [train(0.5, 0, 0.9), train(1.0, 0, 0.81), train(1.0, 1, 0.84), train(1.0, 2, 0.1)]
    )
    difference = compare(other, baseline, "validation/f1")
    assert difference is not None
    assert difference[0] == pytest.approx(0.015)
    assert difference[2] == 2
    assert find_front([baseline, other], baseline, "validation/f1") == [other], "faster and better"
    assert find_front([baseline, other], baseline, "validation/loss") == [other, baseline]


def test_the_time_of_a_resumed_run_is_that_of_all_its_attempts(tmp_path: Path) -> None:
    best = {"metric": ACCURACY, "value": 0.5, "step": 1, "epoch": 0, "metrics": {ACCURACY: 0.5}}
    result = {"best": best, "epochs": 4, "seconds": 30, "phases": {"import": 5, "train": 5}}
    (tmp_path / "result.json").write_text(json.dumps(result))
    (tmp_path / "state.json").write_text(json.dumps({"status": "done", "attempts": 2}))
    training = read_training(tmp_path, ACCURACY, 1.0, 0, 4)
    assert training is not None
    assert (training.epoch_seconds, training.other_seconds) == (5, 5)


@pytest.mark.parametrize("share", [0.0625, 0.125, 0.25, 0.5, 1.0])
def test_half_the_epochs_is_always_a_shorter_training(share: float) -> None:
    """Of 4 epochs a quarter was 1, and half of them was the same training in half of the time."""
    for epochs in (2, 3, 4, 6, 30):
        full_training, half_training = (Measured(Variant("x"), count, epochs) for count in (epochs, epochs // 2))
        assert half_training.count_epochs(share) < full_training.count_epochs(share)
    assert Measured(Variant("x"), 8, 8, least_epochs=3).count_epochs(share) >= 3, "layers are trained from then on"


def test_a_job_without_a_fixed_length_and_a_bad_time_are_refused(tmp_path: Path) -> None:
    job = small_job.write_job(tmp_path)
    with pytest.raises(SpecError, match="--within"):
        tradeoffs.measure_tradeoffs(tradeoffs.TradeoffsRequest(job, within="soon"))
    for key, value in {"within": "5m", "steps": "20", "batch_size": "auto"}.items():
        with pytest.raises(SpecError, match=rf"train\.{key}"):
            tradeoffs.measure_tradeoffs(tradeoffs.TradeoffsRequest(job, (f"train.{key}={value}",), tmp_path / "runs"))


@pytest.mark.slow
def test_real_trainings(tmp_path: Path) -> None:
    job = small_job.write_job(tmp_path, epochs="2")
    assert run(job) == 0
    lines = read(job)
    assert lines["half the epochs"]["value"] is not None
    log = (tmp_path / "runs" / "small-tradeoffs" / "tradeoffs.log").read_text()
    assert "done:" in log
