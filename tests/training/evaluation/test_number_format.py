"""Validation is computed in fp32, and a shorter format that hurts the trained network is left."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from drivetrain.data.dataset import Head
from drivetrain.models import inspection
from drivetrain.training import batch_inputs
from drivetrain.training.checkpoints import run_state
from drivetrain.training.evaluation import validation
from drivetrain.training.nonfinite import Scaler
from tests import tiny
from tests.messages import omits, says


def test_validation_is_what_the_stored_model_computes(tmp_path: Path) -> None:
    """A report said 0.0391 where `evaluate` computed 0.0291."""
    short = tiny.assemble_run(tmp_path, tiny.job(), settings={"precision": "bf16"})
    exact = tiny.assemble_run(tmp_path, tiny.job(), settings={"precision": "fp32"})
    exact.model.load_state_dict(short.model.state_dict())
    short.model.eval()
    exact.model.eval()
    inputs = batch_inputs.preprocess(short, next(iter(short.batches.epoch(0))), None).inputs
    assert not torch.equal(short.step.forward.outputs(inputs), exact.step.forward.outputs(inputs))  # type: ignore[arg-type, unused-ignore]
    assert validation.evaluate(short) == validation.evaluate(exact)


@pytest.mark.parametrize(
    ("epoch", "losses", "source", "stays"),
    [
        (4, (1.06, 1.0), "measured", False),
        (4, (0.94, 1.0), "choice", False),
        (4, (1.06, 1.0), "job", True),
        (4, (1.04, 1.0), "measured", True),
        (4, (0.0014, 0.001), "measured", True),
        (3, (9.0, 1.0), "measured", True),
    ],
)
def test_a_format_that_changes_the_loss_of_the_trained_network_is_left(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    epoch: int,
    losses: tuple[float, float],
    source: str,
    stays: bool,
) -> None:
    run = tiny.assemble_run(tmp_path, tiny.job(), settings={"precision": "bf16"})
    row = run.plan.decision("precision")
    monkeypatch.setattr(type(run.plan), "decision", lambda self, name: row.__class__(**{**vars(row), "source": source}))
    monkeypatch.setattr(validation, "_measure_losses", lambda _: losses)
    run.counters.epoch = epoch
    validation.check_precision(run)
    assert (run.step.forward.dtype is not None) is stays
    events = (tmp_path / "events.jsonl").read_text() if (tmp_path / "events.jsonl").exists() else ""
    if not stays:
        assert says(events, "apart-continuing-fp32")
        # A resumed run goes on in fp32, too.
        other = Scaler()
        other.load(run_state.collect_state(run)["scaler"])  # type: ignore[arg-type]
        assert other.fell_back
    assert (says if source == "job" else omits)(events, "kept-set-job")


def test_the_losses_of_both_formats_are_those_of_the_same_batches(tmp_path: Path) -> None:
    run = tiny.assemble_run(tmp_path, tiny.job(), settings={"precision": "bf16"})
    before = {name: value.clone() for name, value in run.model.state_dict().items()}
    losses, exact = validation._measure_losses(run)
    assert losses != exact
    assert losses == pytest.approx(exact, rel=0.05)
    run.step.fall_back_to_fp32()
    assert validation._measure_losses(run) == (exact, exact)
    assert all(torch.equal(value, before[name]) for name, value in run.model.state_dict().items())


def test_a_head_without_classes_predicts_numbers() -> None:
    data = tiny.dataset()
    network = tiny.build(tiny.job(), data).module
    assert not inspection.inspect_workload(data, network).numeric
    data.heads = {"": Head("", columns=("value",), mean=(0.0,), std=(1.0,))}
    assert inspection.inspect_workload(data, network).numeric
