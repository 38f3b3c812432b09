"""What of a training was forward, backward, update and compiling; and how much of what the machine can was reached."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from drivetrain.report.write import write
from drivetrain.training import profiling
from drivetrain.training.evaluation.validation import evaluate
from tests import tiny
from tests.messages import says
from tests.report_folder import change_json, make_run


def test_the_parts_of_a_step_add_up_and_change_no_bit(tmp_path: Path) -> None:
    losses = []
    for timed in (False, True):
        run = tiny.assemble_run(tmp_path / str(timed), tiny.job())
        if timed:
            profiling.split_step_time(run)
        with run.clock.phase("train"):
            losses.append(tiny.losses(run, 6))
    assert losses[0] == losses[1]
    phases = run.clock.phases
    assert set(phases) == {"train", "forward", "optimizer"}
    assert all(seconds > 0 for seconds in phases.values())
    assert sum(phases.values()) <= run.clock.seconds


def test_an_evaluation_stays_one_phase(tmp_path: Path) -> None:
    run = tiny.assemble_run(tmp_path, tiny.job())
    profiling.split_step_time(run)
    with run.clock.phase("evaluate"):
        evaluate(run)
    assert set(run.clock.phases) == {"evaluate"}


def test_the_first_forward_pass_compiles(tmp_path: Path) -> None:
    run = tiny.assemble_run(tmp_path, tiny.job())
    step_phases = profiling.StepPhases(run)
    step_phases.compiles_next = True
    with run.clock.phase("train"):
        with step_phases.phase("optimizer"):
            pass
        with step_phases.phase("forward"):
            pass
        assert set(run.clock.phases) == {"train", "optimizer", "compile"}
        with step_phases.phase("forward"):
            pass
    assert "forward" in run.clock.phases


def test_a_gpu_is_not_timed(tmp_path: Path) -> None:
    run = tiny.assemble_run(tmp_path, tiny.job())
    run.device = torch.device("cuda")
    untimed_step = run.step
    profiling.split_step_time(run)
    assert run.step is untimed_step


def test_operations_are_those_of_the_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two layers of 64 x 5 and 5 x 3: a multiplication and an addition each, three times for a training step."""
    monkeypatch.setattr(profiling, "MIN_RUN_SECONDS", 0.0)
    run = tiny.assemble_run(tmp_path, tiny.job())
    run.model = nn.Sequential(nn.Flatten(), nn.Linear(64, 5), nn.Linear(5, 3))
    run.step.forward.compute = run.model
    flops = profiling.measure_flops(run)
    assert flops is not None
    assert flops["operations"] == 3 * 2 * (64 * 5 + 5 * 3)
    assert flops["product"] > 1e8
    run.kept_in_eval_mode = [run.model]
    assert profiling.measure_flops(run) is None


def test_a_network_that_cannot_be_counted_is_an_event(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Broken(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise ValueError("not like this")

    monkeypatch.setattr(profiling, "MIN_RUN_SECONDS", 0.0)
    run = tiny.assemble_run(tmp_path, tiny.job())
    run.model = Broken()
    run.step.forward.compute = run.model
    assert profiling.measure_flops(run) is None
    assert says(capsys.readouterr().out, "efficiency-could-measured-like")


def test_the_report_shows_both(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "digits-001")
    change_json(
        folder / "result.json",
        lambda r: r.update(
            phases={"forward": 10.0, "train": 20.0, "optimizer": 3.0, "evaluate": 2.0},
            data=["1,438 training images", "a: b"],
            watching={"monitor": 0.1, "live view": 0.2},
            efficiency={"operations": 2e6, "product": 5e10},
        ),
    )
    write(folder)
    report = (folder / "report.md").read_text()
    assert "backward" in report
    assert says(report, "mflop-per-sample-gflop", 2, "1.037")
    assert says(report, "gflop-per-second-machine", 50, "2.1")
    assert says(report, "monitoring-monitor-live-view", "0.30", "0.7")
    assert "1,438 training images" in report
