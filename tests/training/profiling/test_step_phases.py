"""A training is timed by phase: forward, backward, update and compilation."""

from __future__ import annotations

from pathlib import Path

import torch

from drivetrain.report.write import write
from drivetrain.training import profiling
from drivetrain.training.evaluation.validation import evaluate
from tests import tiny
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


def test_the_report_shows_both(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "digits-001")
    change_json(
        folder / "result.json",
        lambda r: r.update(
            phases={"forward": 10.0, "train": 20.0, "optimizer": 3.0, "evaluate": 2.0},
            data=["1,438 training images", "a: b"],
        ),
    )
    write(folder)
    report = (folder / "report.md").read_text()
    assert "backward" in report
    assert "1,438 training images" in report
