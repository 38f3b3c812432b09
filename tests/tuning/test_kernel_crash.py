"""A process that dies of a signal inside a kernel: told, tried once more with everything off, and an exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from drivetrain import optimizations
from drivetrain.job_spec.spec_source import SpecSource
from drivetrain.plan import plan
from drivetrain.system import child_process
from drivetrain.system.files import write_json
from drivetrain.tuning import batch_size, measuring_child, process_death
from tests import tiny
from tests.messages import begins_with, says
from tests.own_job import write_job
from tests.paths import IMPORTS
from tests.plan.attempted_trainers import Trainers, find_decision, folder, run_attempts

__all__ = ["folder"]

SEGFAULT = 139
DATA = """
import torch

def points(samples):
    x = torch.randn(samples, 3, 6, 6, generator=torch.Generator().manual_seed(samples))
    return x, (x.mean(dim=(1, 2, 3)) > 0).long()

def load():
    return points(96), points(32)
"""
MODEL = """
import os, signal, torch
from torch import nn

class Net(nn.Module):
    def __init__(self, outputs):
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3)
        self.last = nn.Linear(64, outputs)
        self.calls = 0

    def forward(self, x):
        x = self.first(x)
        self.calls += self.training
        if CONDITION:
            os.kill(os.getpid(), signal.SIGSEGV)
        return self.last(x.flatten(1))

def build(outputs):
    return Net(outputs)
"""
ODD = "self.calls > 9 and not x.is_contiguous()"
ALWAYS = "self.calls > 5"


def train_with_crash(path: Path, condition: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A run of a network of one's own that dies in a step if the condition holds."""
    spec = write_job(path, {"my_data.py": DATA, "my_model.py": MODEL.replace("CONDITION", condition)})
    command = [sys.executable, "-m", "drivetrain", "train", str(spec), "--runs", str(path / "runs"), *arguments]
    environment = {**os.environ, "PYTHONPATH": IMPORTS}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=300)


def test_after_a_kernel_crash_a_run_resumes_with_optimizations_off(tmp_path: Path) -> None:
    done = train_with_crash(tmp_path, ODD)
    assert done.returncode == 0, done.stdout + done.stderr
    crash_line = next(line for line in done.stdout.splitlines() if line.startswith("crash: "))
    assert begins_with(crash_line, "crash-trainer-crashed-sigsegv", "my_model.py", 15)
    assert "channels_last true" in crash_line
    assert "`--new --set optimize.channels_last=false`" in crash_line
    assert "resumed from step-6" in done.stdout
    run_folder = tmp_path / "runs" / "tiny-001"
    rows = {row["name"]: row for row in json.loads((run_folder / "plan.json").read_text())["decisions"]}
    assert (rows["channels_last"]["value"], rows["channels_last"]["source"]) == (False, "crash")
    assert rows["channels_last"]["reason"].endswith("with true")
    assert rows["cpu_threads"]["source"] == "job"
    assert "crashed with SIGSEGV" in (run_folder / "report.md").read_text()
    assert "SIGSEGV" in (run_folder / "events.jsonl").read_text()


def test_a_run_that_dies_with_everything_off_too_ends_with_9(tmp_path: Path) -> None:
    first_attempt = train_with_crash(tmp_path, ALWAYS)
    assert first_attempt.returncode == 9, first_attempt.stdout + first_attempt.stderr
    assert first_attempt.stdout.count("crash: ") == 1
    assert says(first_attempt.stderr, "trainer-crashed-sigsegv-inside", "my_model.py", 15)
    assert "my_model.py" in (tmp_path / "runs" / "tiny-001" / "crash.txt").read_text()
    second_attempt = train_with_crash(tmp_path, ALWAYS)
    assert second_attempt.returncode == 9
    assert "crash: " not in second_attempt.stdout


@pytest.mark.nightly
def test_a_run_of_several_processes(tmp_path: Path) -> None:
    done = train_with_crash(tmp_path, ODD + " and os.environ['DRIVETRAIN_RANK'] == '1'", "--set", "limits.processes=2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert says(done.stdout, "crash-trainer-crashed-sigsegv-inside", "my_model.py", 15)


def test_optimizations_that_are_retried_after_a_crash(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainers = Trainers(folder, SEGFAULT, SEGFAULT, 0, micro_batch=8, precision="bf16", channels_last=True)
    assert run_attempts(trainers, monkeypatch) == 9
    assert len(trainers.plans) == 2
    second_plan = trainers.plans[1]
    assert (second_plan.value("micro_batch"), second_plan.value("precision"), second_plan.value("channels_last")) == (
        8,
        "fp32",
        False,
    )
    assert find_decision(second_plan, "precision").source == "crash"


def test_a_trainer_that_dies_while_it_measures_is_tried_without(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trainers = Trainers(folder, SEGFAULT, 0)
    trainers.writes_checkpoint = False
    assert run_attempts(trainers, monkeypatch) == 0
    assert trainers.arguments == [[], ["--measured"]]
    assert trainers.plans[0] == trainers.plans[1]
    assert says((folder / "events.jsonl").read_text(), "before-first-step-restarting")


@pytest.mark.parametrize("code", [134, 135, 132, 136])
def test_every_such_signal(folder: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    assert run_attempts(Trainers(folder, code, 0, channels_last=True), monkeypatch) == 0


def test_what_was_learned_from_a_crash_stays_in_a_resumed_run() -> None:
    job, machine = tiny.job(optimize="fused_optimizer: true"), tiny.machine()
    fresh = plan.resolve(job, machine)
    stored = process_death.turn_optimizations_off(fresh, "the trainer died")
    assert stored is not None
    assert plan.keep_reasons(fresh, stored).value("fused_optimizer") is False
    assert process_death.turn_optimizations_off(stored, "the trainer died") is None


class Measurements:
    """Stands in for the measuring processes: each ends as it is told, and the last one stores a batch size."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *exit_codes: int) -> None:
        self.exit_codes, self.plans = list(exit_codes), list[plan.Plan]()
        monkeypatch.setattr(child_process, "run_child", self)

    def __call__(self, command: Sequence[str], *arguments: object) -> int:
        measured_folder = Path(command[command.index("-m") + 3])
        self.plans.append(plan.load(measured_folder / "plan.json"))
        write_json(measured_folder / measuring_child.RESULT, {"batch_size": 16, "text": "16, the fastest"})
        return self.exit_codes.pop(0)


def measure_size(run: Path) -> dict[str, int]:
    job = tiny.job(optimize="channels_last: true, fused_optimizer: true")
    job = job.model_copy(update={"train": job.train.model_copy(update={"batch_size": "auto"})})
    return batch_size.measure_once(SpecSource(Path("x.yaml")), job, tiny.machine(), run)


def test_a_batch_size_is_measured_once_more_with_optimizations_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measurements = Measurements(monkeypatch, SEGFAULT, 0)
    assert measure_size(tmp_path) == {"batch_size": 16}
    assert [measured_plan.value("channels_last") for measured_plan in measurements.plans] == [True, False]
    events = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert [row["kind"] for row in events] == ["crash", "batch_size"]
    assert says(events[0]["text"], "measured-once-more-all-off", "--new --set optimize.channels_last=false")


def test_a_batch_size_that_crashes_with_everything_off_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Measurements(monkeypatch, SEGFAULT, SEGFAULT)
    with pytest.raises(measuring_child.MeasurementEnded, match="9"):
        measure_size(tmp_path)
    message = capsys.readouterr().err
    assert says(message, "crashed-sigsegv-every-optimization-off")
    assert process_death.FILE not in message


@pytest.mark.slow
def test_a_crash_while_the_batch_size_is_measured_does_not_end_the_training(tmp_path: Path) -> None:
    condition = "self.calls > 3 and not x.is_contiguous()"
    done = train_with_crash(tmp_path, condition, "--set", "train.batch_size=auto", "--set", "baselines=off")
    assert done.returncode == 0, done.stdout + done.stderr
    assert says(done.stdout, "measured-once-more-all-off", "--new --set optimize.channels_last=false")
    assert "crashed with SIGSEGV" in (tmp_path / "runs" / "tiny-001" / "report.md").read_text()


@pytest.mark.parametrize(
    ("names", "advice"),
    [
        (["channels_last"], "try `--set optimize.channels_last=false`"),
        (
            ["fused_optimizer", "channels_last"],
            "try `--set optimize.channels_last=false`, or all of them off: `--set optimize.channels_last=false "
            "--set optimize.fused_optimizer=false`",
        ),
        ([], "run `drivetrain doctor`; try `--set limits.cpus=1`, another image or another machine"),
    ],
)
def test_a_measuring_child(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], names: list[str], advice: str
) -> None:
    measurements = Measurements(monkeypatch, SEGFAULT)
    machine = tiny.machine()
    first_plan = plan.resolve(tiny.job(), machine, plain=True).with_values(dict.fromkeys(names, True))
    assert measuring_child.measure("memory", tmp_path, SpecSource(Path("x.yaml")), first_plan, machine) == 9
    assert len(measurements.plans) == 1
    message = capsys.readouterr().err
    assert says(message, "crashed-sigsegv-inside-kernel")
    assert message.rstrip().endswith(advice)
    assert process_death.FILE not in message


def test_everything_can_be_turned_off_in_the_job(tmp_path: Path) -> None:
    values = optimizations.off_values()
    sets = [f"optimize.{name}={plan.format_value(values[name])}" for name in values.keys() - process_death.LIMITING]
    job = SpecSource(write_job(tmp_path), sets).load()
    assert process_death.turn_optimizations_off(plan.resolve(job, tiny.machine()), "") is None
