"""The fp16 scaler has torch's rules and its own bounds; a collapse ends the run or switches it to fp32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from drivetrain.errors import NumericsError, SpecError
from drivetrain.job.train import Fp16
from drivetrain.system.run_files import list_checkpoints
from drivetrain.tracking.metrics_log import MetricsLog
from drivetrain.training import loop, run
from drivetrain.training.checkpoints import checkpoint, run_state
from drivetrain.training.nonfinite import Scaler
from drivetrain.training.saver import Saver
from tests import tiny
from tests.messages import says_only
from tests.training.hooked_run import SilentProgress, nan_input, read_rows

torch.set_num_threads(1)


def parameter(gradient: float) -> torch.nn.Parameter:
    spoiled = torch.nn.Parameter(torch.ones(3))
    spoiled.grad = torch.full((3,), gradient)
    return spoiled


@pytest.mark.parametrize(
    "spec",
    [Fp16(growth_interval=2), Fp16(initial_scale=8.0, growth_factor=4.0, backoff_factor=0.25, growth_interval=3)],
)
def test_the_scale_moves_like_that_of_torch(spec: Fp16) -> None:
    ours = Scaler(spec)
    theirs = torch.amp.GradScaler(
        "cpu",
        init_scale=spec.initial_scale,
        growth_factor=spec.growth_factor,
        backoff_factor=spec.backoff_factor,
        growth_interval=spec.growth_interval,
    )
    for number in (1.0, 2.0, 3.0, float("inf"), 1.0, float("nan"), 5.0, 6.0, 7.0, 8.0):
        mine, other = parameter(number * ours.scale), parameter(number * ours.scale)
        optimizer = torch.optim.SGD([other], lr=0.0)
        assert (
            torch.equal(ours.scale_loss(torch.tensor(number)), theirs.scale(torch.tensor(number))) or number != number
        )
        ours.unscale([mine])
        theirs.unscale_(optimizer)
        assert mine.grad is not None
        assert other.grad is not None
        assert torch.equal(mine.grad.nan_to_num(0.0), other.grad.nan_to_num(0.0))
        ours.update(bool(mine.grad.isfinite().all()))
        theirs.step(optimizer)
        theirs.update()
        assert ours.scale == theirs.get_scale()


def test_the_scale_has_an_upper_bound() -> None:
    scaler = Scaler(Fp16(initial_scale=8.0, growth_interval=1, max_scale=20.0))
    for _ in range(3):
        scaler.update(True)
    assert scaler.scale == 20.0


def test_nothing_is_scaled_without_fp16() -> None:
    scaler, loss, weight = Scaler(), torch.tensor(2.0), parameter(3.0)
    assert scaler.scale_loss(loss) is loss
    scaler.unscale([weight])
    assert weight.grad is not None
    assert weight.grad.tolist() == [3.0, 3.0, 3.0]
    scaler.update(False)
    assert (scaler.scale, scaler.state()) == (1.0, {})


def test_settings_must_fit_together() -> None:
    with pytest.raises(
        SpecError, match=r"(?s)train\.fp16\.initial_scale: starts at 8.*from min_scale \(16\) to max_scale"
    ):
        tiny.job(train="fp16: {initial_scale: 8.0, min_scale: 16.0}")


def compute_in_fp16(training_run: run.Run) -> None:
    """Compute in fp16, as the plan would have it where the chip is good at it."""
    training_run.step.forward.dtype = torch.float16
    training_run.step.scale_losses(training_run.job.train.fp16)


def test_training_in_fp16_follows_that_in_fp32(tmp_path: Path) -> None:
    fp32_run, fp16_run = (tiny.assemble_run(tmp_path, tiny.job(train="optimizer: {lr: 1e-3}")) for _ in range(2))
    compute_in_fp16(fp16_run)
    fp32_losses, fp16_losses = tiny.losses(fp32_run, 8), tiny.losses(fp16_run, 8)
    assert fp16_losses != fp32_losses
    assert fp16_losses == pytest.approx(fp32_losses, rel=2e-2)
    assert fp16_run.step.updater.scaler.scale == 65536.0


def fit(folder: Path, train: str, bad_steps: range) -> tuple[run.Run, str]:
    """The tiny job in fp16, whose inputs are not finite in the steps `bad` while it is in fp16."""
    training_run = tiny.assemble_run(folder, tiny.job(train=train))
    compute_in_fp16(training_run)

    def hook(module: torch.nn.Module, inputs: Any) -> Any:
        spoiled = (
            module.training and training_run.counters.step + 1 in bad_steps and training_run.step.updater.scaler.active
        )
        return nan_input(training_run) if spoiled else None

    training_run.model.register_forward_pre_hook(hook)
    training_run.metrics = MetricsLog(folder)
    saver = Saver(training_run)
    saver.save_final()
    try:
        return training_run, loop.fit(training_run, saver, SilentProgress())  # type: ignore[arg-type]
    finally:
        training_run.metrics.close()


def test_a_few_skipped_steps_are_normal_and_the_scale_is_logged(tmp_path: Path) -> None:
    training_run, reason = fit(tmp_path, "fp16: {growth_interval: 4}", range(3, 5))
    assert reason == "all 3 epochs trained"
    scales = [row["scale"] for row in read_rows(tmp_path, "metrics.jsonl") if "lr" in row]
    assert scales == [65536, 65536, 32768, 16384, 16384, 16384, 16384, 32768, 32768, 32768, 32768, 65536]
    saved = checkpoint.load(list_checkpoints(tmp_path / "checkpoints")[-1])
    assert saved.state["scaler"] == {"scale": 65536.0, "good": 0, "fallen": False}
    assert training_run.numerics.rollbacks == 0


def test_a_scaler_collapse_ends_the_run_with_advice(tmp_path: Path) -> None:
    with pytest.raises(NumericsError) as caught:
        fit(tmp_path, "fp16: {min_scale: 4096.0}", range(3, 40))
    assert says_only(caught.value.given, "fp16-loss-scale-collapsed", 2048, 5)
    assert caught.value.action.endswith("switch to fp32: train.fp16: {fallback: fp32}")


@pytest.fixture
def fallback_run(tmp_path: Path) -> run.Run:
    training_run, reason = fit(tmp_path, "fp16: {min_scale: 4096.0, fallback: fp32}", range(3, 40))
    assert reason == "all 3 epochs trained"
    return training_run


def test_after_a_scaler_collapse_training_continues_in_fp32_if_the_job_says_so(
    tmp_path: Path, fallback_run: run.Run
) -> None:
    (event,) = [row for row in read_rows(tmp_path, "events.jsonl") if row["kind"] == "precision"]
    assert says_only(event["text"], "fp16-loss-scale-collapsed-after", 2048, 5, "step-0", "train.fp16.fallback")
    (tmp_path / "plain").mkdir()
    plain = tiny.assemble_run(tmp_path / "plain", tiny.job())
    losses = [row["train/loss"] for row in read_rows(tmp_path, "metrics.jsonl") if "lr" in row]
    assert losses == tiny.losses(plain, 12)
    assert not any("scale" in row for row in read_rows(tmp_path, "metrics.jsonl"))


def test_a_checkpoint_saved_after_a_fallback_resumes_in_fp32(tmp_path: Path, fallback_run: run.Run) -> None:
    fallback_run.metrics = MetricsLog(tmp_path)
    Saver(fallback_run).save_final()
    fallback_run.metrics.close()
    (tmp_path / "again").mkdir()
    resumed_run = tiny.assemble_run(tmp_path / "again", fallback_run.job)
    compute_in_fp16(resumed_run)
    run_state.restore(resumed_run, checkpoint.load(list_checkpoints(tmp_path / "checkpoints")[-1]))
    assert (resumed_run.step.forward.dtype, resumed_run.step.updater.scaler.active, resumed_run.counters.step) == (
        None,
        False,
        12,
    )


def test_a_run_resumed_without_fp16_after_a_crash_drops_the_scaler(tmp_path: Path) -> None:
    first_run, _ = fit(tmp_path, "fp16: {growth_interval: 4}", range(0))
    (tmp_path / "again").mkdir()
    resumed_run = tiny.assemble_run(tmp_path / "again", first_run.job)
    run_state.restore(resumed_run, checkpoint.load(list_checkpoints(tmp_path / "checkpoints")[-1]))
    assert not resumed_run.step.updater.scaler.active
    assert run_state.collect_state(resumed_run)["scaler"] == {}
