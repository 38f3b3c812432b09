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
from tests.report_folder import change, make


def test_the_parts_of_a_step_add_up_and_change_no_bit(tmp_path: Path) -> None:
    found = []
    for timed in (False, True):
        made = tiny.assembled(tmp_path / str(timed), tiny.job())
        if timed:
            profiling.split_step_time(made)
        with made.clock.phase("train"):
            found.append(tiny.losses(made, 6))
    assert found[0] == found[1]
    phases = made.clock.phases
    assert set(phases) == {"train", "forward", "optimizer"}
    assert all(seconds > 0 for seconds in phases.values())
    assert sum(phases.values()) <= made.clock.seconds


def test_an_evaluation_stays_one_phase(tmp_path: Path) -> None:
    made = tiny.assembled(tmp_path, tiny.job())
    profiling.split_step_time(made)
    with made.clock.phase("evaluate"):
        evaluate(made)
    assert set(made.clock.phases) == {"evaluate"}


def test_the_first_forward_pass_compiles(tmp_path: Path) -> None:
    made = tiny.assembled(tmp_path, tiny.job())
    watch = profiling.StepPhases(made)
    watch.compiles_next = True
    with made.clock.phase("train"):
        with watch.phase("optimizer"):
            pass
        with watch.phase("forward"):
            pass
        assert set(made.clock.phases) == {"train", "optimizer", "compile"}
        with watch.phase("forward"):
            pass
    assert "forward" in made.clock.phases


def test_a_gpu_is_not_timed(tmp_path: Path) -> None:
    made = tiny.assembled(tmp_path, tiny.job())
    made.device = torch.device("cuda")
    before = made.step
    profiling.split_step_time(made)
    assert made.step is before


def test_operations_are_those_of_the_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two layers of 64 x 5 and 5 x 3: a multiplication and an addition each, three times for a training step."""
    monkeypatch.setattr(profiling, "MIN_RUN_SECONDS", 0.0)
    made = tiny.assembled(tmp_path, tiny.job())
    made.model = nn.Sequential(nn.Flatten(), nn.Linear(64, 5), nn.Linear(5, 3))
    made.configure_step(forward=made.model)
    found = profiling.measure_flops(made)
    assert found is not None
    assert found["operations"] == 3 * 2 * (64 * 5 + 5 * 3)
    assert found["product"] > 1e8
    made.kept_in_eval_mode = [made.model]
    assert profiling.measure_flops(made) is None


def test_a_network_that_cannot_be_counted_is_an_event(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Broken(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise ValueError("not like this")

    monkeypatch.setattr(profiling, "MIN_RUN_SECONDS", 0.0)
    made = tiny.assembled(tmp_path, tiny.job())
    made.model = Broken()
    made.configure_step(forward=made.model)
    assert profiling.measure_flops(made) is None
    assert says(capsys.readouterr().out, "efficiency-could-measured-like")


def test_the_report_shows_both(tmp_path: Path) -> None:
    run = make(tmp_path / "digits-001")
    change(
        run / "result.json",
        lambda r: r.update(
            phases={"forward": 10.0, "train": 20.0, "optimizer": 3.0, "evaluate": 2.0},
            data=["1,438 training images", "a: b"],
            watching={"monitor": 0.1, "live view": 0.2},
            efficiency={"operations": 2e6, "product": 5e10},
        ),
    )
    write(run)
    told = (run / "report.md").read_text()
    assert "backward" in told
    assert says(told, "mflop-per-sample-gflop", 2, "1.037")
    assert says(told, "gflop-per-second-machine", 50, "2.1")
    assert says(told, "monitoring-monitor-live-view", "0.30", "0.7")
    assert "1,438 training images" in told
