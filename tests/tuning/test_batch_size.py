"""`train.batch_size: auto` is measured once per run, with advice on the learning rate."""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import drivetrain
from drivetrain.errors import OutOfMemory, SpecError
from drivetrain.job_spec import spec_source
from drivetrain.job_spec.spec_source import SpecSource
from drivetrain.job_spec.stored_spec import spec_text
from drivetrain.supervisor import supervisor
from drivetrain.supervisor.supervisor import TrainRequest
from drivetrain.system import signals
from drivetrain.tuning import batch_size, measuring_child
from drivetrain.tuning.processes import batch_size as batch_size_test
from tests import tiny
from tests.messages import saying, says
from tests.paths import ROOT

TEXT = """
name: tiny
task: image-classification
data: {train: images.npz, validation: 0.2}
model: {name: small-cnn, width: 4}
train: {epochs: 2, batch_size: auto, optimizer: {name: OPTIMIZER, lr: 0.01}}
optimize: {cpu_threads: 1, measure: off}
"""


def write_job(folder: Path, optimizer: str = "adamw") -> Path:
    images = np.random.default_rng(0).integers(0, 255, (440, 8, 8)).astype(np.uint8)
    np.savez(folder / "images.npz", images=images, labels=np.arange(440) % 3)
    (folder / "tiny.yaml").write_text(TEXT.replace("OPTIMIZER", optimizer))
    return folder / "tiny.yaml"


def run_drivetrain(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "drivetrain", *arguments]
    runs = ("--runs", str(folder / "runs")) if arguments[0] == "train" else ()
    return subprocess.run([*command, *runs], cwd=ROOT, capture_output=True, text=True, check=False, timeout=240)


def test_a_run_measures_the_batch_size_once_and_resumes_with_it(tmp_path: Path) -> None:
    spec = str(write_job(tmp_path))
    stopped = run_drivetrain(tmp_path, "train", spec, "--set", "train.max_time=0.001s")
    assert stopped.returncode == 75, stopped.stdout + stopped.stderr
    run_folder = tmp_path / "runs" / "tiny-001"
    measurement = json.loads((run_folder / "batch_size.json").read_text())
    assert measurement["batch_size"] in (8, 16)
    assert set(measurement["samples_per_second"]) == {"8", "16"}
    assert "train.optimizer.lr stays 0.01" in stopped.stdout
    assert "the square-root rule" in stopped.stdout
    done = run_drivetrain(tmp_path, "train", spec)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "batch_size: measured" not in done.stdout
    assert (run_folder / "events.jsonl").read_text().count("train.optimizer.lr stays") == 1
    assert (
        json.loads((run_folder / "state.json").read_text())["set"][-1]
        == f"train.batch_size={measurement['batch_size']}"
    )
    assert "batch_size: auto" in (run_folder / "job.yaml").read_text()
    rows = [json.loads(line) for line in (run_folder / "metrics.jsonl").read_text().splitlines()]
    assert max(row["step"] for row in rows) == {8: 90, 16: 46}[measurement["batch_size"]]


@pytest.mark.nightly
def test_the_same_bits_as_naming_the_number(tmp_path: Path) -> None:
    spec = str(write_job(tmp_path))
    assert run_drivetrain(tmp_path, "train", spec).returncode == 0
    one = tmp_path / "runs" / "tiny-001"
    number = json.loads((one / "batch_size.json").read_text())["batch_size"]
    assert run_drivetrain(tmp_path, "train", spec, "--set", f"train.batch_size={number}", "--new").returncode == 0
    weights = [next((tmp_path / "runs" / name / "model").glob("*.safetensors")) for name in ("tiny-001", "tiny-002")]
    assert weights[0].read_bytes() == weights[1].read_bytes()


@pytest.fixture
def restore_handlers() -> Iterator[None]:
    """A supervisor ignores signals once its run is over; this process has more to do."""
    before = {number: signal.getsignal(number) for number in signals.HANDLED_SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("restore_handlers")
@pytest.mark.parametrize(
    ("text", "sets"),
    [
        ("batch_size: auto", ()),
        ("batch_size: 'auto'  # measured", ()),
        ("batch_size: 32", ("train.batch_size=auto",)),
        ("batch_size: 32", ("train={epochs: 2, batch_size: auto, optimizer: {name: adamw, lr: 0.01}}",)),
    ],
)
def test_the_measured_number_travels_as_a_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, sets: tuple[str, ...]
) -> None:
    """However auto was written: the trainer gets the number, the run folder records the same."""
    sources: list[SpecSource] = []

    def measure(module: str, source: SpecSource, *other_arguments: object) -> dict[str, object]:
        sources.append(source)
        return {"batch_size": 64, "text": "64, the fastest"}

    def trainers(request: TrainRequest, *other_arguments: object) -> int:
        sources.append(request.source)
        return 0

    monkeypatch.setattr(measuring_child, "measure_result", measure)
    monkeypatch.setattr(supervisor, "run_trainers", trainers)
    path = write_job(tmp_path)
    train_section = "{epochs: 2, batch_size: auto, optimizer: {name: adamw, lr: 0.01}}"
    assert train_section in path.read_text()
    block = f"{{\n  epochs: 2,\n  optimizer: {{name: adamw, lr: 0.01}},\n  {text}\n}}"
    path.write_text(path.read_text().replace(train_section, block))
    assert supervisor.train(TrainRequest(SpecSource(path, sets), tmp_path / "runs")) == 0
    assert [dict(source.measured) for source in sources] == [{"batch_size": batch_size.MIN_SIZE}, {"batch_size": 64}]
    trainer = argparse.ArgumentParser()
    spec_source.add_options(trainer)
    parsed_source = SpecSource.from_arguments(trainer.parse_args([str(path), *sources[1].options()]))
    assert (parsed_source.spec, tuple(parsed_source.assignments), parsed_source.measured) == (
        path,
        sets,
        {"batch_size": 64},
    )
    assert parsed_source.load().train.batch_size == 64
    run_folder = tmp_path / "runs" / "tiny-001"
    assert (run_folder / "job.yaml").read_text() == spec_text(SpecSource(path, sets).load())
    assert "batch_size: auto" in (run_folder / "job.yaml").read_text()
    assert json.loads((run_folder / "state.json").read_text())["set"] == [*sets, "train.batch_size=64"]


def test_problems_after_the_measurement_point_to_the_file(tmp_path: Path) -> None:
    path = write_job(tmp_path)
    with pytest.raises(SpecError, match=r"tiny\.yaml:6:20: train.batch_size: is 0"):
        SpecSource(path, measured={"batch_size": 0}).load()


@pytest.mark.parametrize("arguments", [["bench", "lr"], ["bench", "memory"], ["bench", "speed"]])
def test_other_commands_want_a_number(tmp_path: Path, arguments: list[str]) -> None:
    done = run_drivetrain(tmp_path, *arguments, str(write_job(tmp_path)))
    assert done.returncode == 2
    assert says(done.stderr, "is-auto-which-cannot-measure", "train.batch_size", " ".join(arguments))


def test_from_python_it_must_be_a_number() -> None:
    import torch

    data = torch.utils.data.TensorDataset(torch.zeros(8, 2), torch.zeros(8, dtype=torch.long))
    with pytest.raises(SpecError, check=saying("batch-size-auto-measure", "drivetrain.train")):
        drivetrain.train(torch.nn.Linear(2, 2), data, data, name="x", batch_size="auto")


@pytest.mark.parametrize(("samples", "most"), [(3, 3), (100, 8), (400, 16), (320, 16), (319, 8), (10**6, 4096)])
def test_the_largest_that_is_tried(samples: int, most: int) -> None:
    assert batch_size.find_largest_size(samples) == most


@pytest.mark.parametrize(
    ("speeds", "size"),
    [({8: 100.0}, 8), ({8: 100.0, 16: 190.0, 32: 200.0, 64: 205.0}, 32), ({8: 100.0, 16: 96.0}, 8)],
)
def test_the_smallest_size_near_the_fastest_is_chosen(speeds: dict[int, float], size: int) -> None:
    assert batch_size.choose_size(speeds) == size


@pytest.mark.parametrize(
    ("speeds", "continues"),
    [([100], True), ([100, 90], True), ([100, 90, 106], True), ([100, 101, 102], False), ([50, 100, 101, 103], False)],
)
def test_doubling_continues_while_it_is_faster(speeds: list[float], continues: bool) -> None:
    assert batch_size.still_gains({8 << i: speed for i, speed in enumerate(speeds)}) is continues


@pytest.mark.parametrize(("name", "rule", "rate"), [("sgd", "linear", "0.004"), ("adamw", "square-root", "0.002")])
def test_batch_size_advice_for_the_learning_rate(name: str, rule: str, rate: str) -> None:
    text = batch_size.describe_learning_rate(tiny.job(train=f"optimizer: {{name: {name}, lr: 0.001}}"), 128)
    assert says(text, "rule-would-make-it", rule, rate)


class Narrow:
    """A search in which this many samples fit, with a peak of ten bytes each."""

    def __init__(self, fits: int) -> None:
        self.fits, self.size, self.trials = fits, 0, list[int]()
        self.meter = self

    def reset_peak(self) -> None: ...

    def compute_limit(self) -> int:
        return 10 * self.fits

    def use_size(self, size: int) -> None:
        self.size = size

    def measure_peak(self, size: int, ceiling: int) -> tuple[int | None, float]:
        self.trials.append(size)
        assert size == self.size
        return (10 * size if size <= self.fits else None), 1.0

    def measure_speeds(self, sizes: list[int]) -> dict[int, float]:
        assert sizes == [self.size]
        return {self.size: float(self.size)}


def test_sizes_double_until_one_does_not_fit() -> None:
    narrow = Narrow(100)
    speeds, ceiling = batch_size_test.measure_sizes(narrow, 4096)  # type: ignore[arg-type]
    assert (list(speeds), narrow.trials) == ([8, 16, 32, 64], [8, 16, 32, 64, 128])
    assert ceiling == 1000


def test_nothing_fits_is_reported() -> None:
    with pytest.raises(OutOfMemory, check=saying("auto-even-samples-fit", "train.batch_size", 8)):
        batch_size_test.measure_sizes(Narrow(5), 4096)  # type: ignore[arg-type]
