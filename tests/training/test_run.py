"""Events of a run: dated with its own position, after a resume too; and what overrides its plan from outside."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from drivetrain.training import train
from drivetrain.training.checkpoints import run_state
from tests import tiny
from tests.newest_checkpoint import load_latest


def test_events_of_step_and_loader_carry_the_restored_position(tmp_path: Path) -> None:
    train.train(tiny.assemble_run(tmp_path, tiny.job(epochs=1)))
    loaded, _ = load_latest(tmp_path / "checkpoints")
    assert loaded is not None
    (tmp_path / "again").mkdir()
    resumed_run = tiny.assemble_run(tmp_path / "again", tiny.job(epochs=1))
    run_state.restore(resumed_run, loaded)
    resumed_run.step.report("memory", "less memory")
    resumed_run.step.report("compile", "no compiler")
    resumed_run.batches.report("no workers")
    events = [json.loads(line) for line in (tmp_path / "again/events.jsonl").read_text().splitlines()]
    assert [(event["kind"], event["step"]) for event in events] == [("memory", 4), ("compile", 4), ("loader", 4)]
    assert (resumed_run.counters.samples, resumed_run.earlier_samples) == (64, 64)


@pytest.mark.parametrize(
    ("name", "value", "warning"),
    [
        ("ONEDNN_DEFAULT_FPMATH_MODE", "BF16", "lowers the plan's precision"),
        ("NVIDIA_TF32_OVERRIDE", "0", "overrides the precision of the plan"),
        ("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "1", "overrides the precision of the plan"),
        ("ONEDNN_DEFAULT_FPMATH_MODE", "STRICT", ""),
        ("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "0", ""),
    ],
)
def test_variables_that_override_the_precision_are_events(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str, warning: str
) -> None:
    monkeypatch.setenv(name, value)
    tiny.assemble_run(tmp_path, tiny.job(epochs=1))
    path = tmp_path / "events.jsonl"
    events = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    assert [event["text"] for event in events] == [
        f"{name}={value} {warning}; unset it if you did not mean that"
    ] * bool(warning)
