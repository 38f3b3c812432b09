"""Numbers that are not finite are skipped, roll the run back or end it, and are never saved."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from drivetrain.errors import NumericsError, Stopped
from drivetrain.tracking.metrics_log import MetricsLog
from drivetrain.training import loop, run
from drivetrain.training.checkpoints import run_state
from drivetrain.training.nonfinite import NonfiniteGuard, NotFinite, list_nonfinite
from drivetrain.training.saver import Saver
from drivetrain.training.step_result import BatchLoss
from tests import tiny
from tests.messages import saying, says, says_only
from tests.newest_checkpoint import load_latest
from tests.training.hooked_run import (
    ROLLBACK,
    SilentProgress,
    add_outliers,
    at_steps,
    fit,
    nan_gradient,
    nan_input,
    read_rows,
)


@pytest.mark.parametrize("action", [nan_input, nan_gradient], ids=["input", "gradient"])
def test_one_bad_step_is_skipped_and_seen(tmp_path: Path, action: Callable[[run.Run], None]) -> None:
    weights_before: dict[str, torch.Tensor] = {}

    def spoil(training_run: run.Run) -> None:
        at_steps(
            5,
            action=lambda m: (
                weights_before.update({k: v.clone() for k, v in m.model.state_dict().items()}),
                action(m),
            )[1],
        )(training_run)
        step = training_run.step

        def check_update(loss: BatchLoss, size: int) -> Any:
            outcome = step.update(loss, size)
            if not outcome.finite:
                assert all(torch.equal(weights_before[k], v) for k, v in training_run.model.state_dict().items())
            return outcome

        check_update.__dict__.update(step.__dict__)
        object.__setattr__(training_run, "step", _Wrapped(step, check_update))

    _, reason = fit(tmp_path, spoil)
    assert reason == "all 3 epochs trained"
    skipped_rows = [row for row in read_rows(tmp_path, "metrics.jsonl") if row.get("skipped")]
    assert [row["step"] for row in skipped_rows] == [5]
    assert not torch.isfinite(torch.tensor([skipped_rows[0]["train/loss"], skipped_rows[0]["grad_norm"]])).all()
    assert "step 5 skipped: loss" in read_rows(tmp_path, "events.jsonl")[0]["text"]
    assert_all_finite(tmp_path)


class _Wrapped:
    def __init__(self, step: Any, call: Any) -> None:
        self._step, self._call = step, call

    def update(self, loss: torch.Tensor, size: int) -> Any:
        return self._call(loss, size)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._step, name)


def assert_all_finite(folder: Path) -> None:
    files = list((folder / "checkpoints").glob("*/*.safetensors"))
    assert files
    for path in files:
        for name, value in safetensors.torch.load_file(path).items():
            assert torch.isfinite(value.float()).all(), f"{path}: {name}"


def test_three_in_a_row_go_back_and_leave_the_batches_out(tmp_path: Path) -> None:
    training_run, reason = fit(tmp_path, at_steps(5, 6, 7, action=nan_input))
    assert reason == "all 3 epochs trained"
    assert training_run.numerics.rollbacks == 1
    assert training_run.numerics.skipped_batches == {(1, 0), (1, 1), (1, 2)}
    (text,) = [row["text"] for row in read_rows(tmp_path, "events.jsonl") if "back to" in row["text"]]
    assert says(text, "steps-row-loss-gradient", 3)
    assert "back to step-0" in text
    assert "epoch 2 batch 1, epoch 2 batch 2, epoch 2 batch 3" in text
    steps = [row["step"] for row in read_rows(tmp_path, "metrics.jsonl") if "lr" in row]
    assert steps == [1, 2, 3, 4, 8, 9, 10, 11, 12]
    assert_all_finite(tmp_path)


def test_the_second_time_is_the_end(tmp_path: Path) -> None:
    with pytest.raises(NumericsError, check=saying("run-already-rolled-back")):
        fit(tmp_path, at_steps(2, 3, 4, 9, 10, 11, action=nan_input))
    assert_all_finite(tmp_path)


def test_a_buffer_that_is_not_finite_is_never_saved(tmp_path: Path) -> None:
    def poison(training_run: run.Run) -> None:
        next(b for n, b in training_run.model.named_buffers() if n.endswith("running_mean")).fill_(float("nan"))

    _, reason = fit(tmp_path, at_steps(6, action=poison))
    assert reason == "all 3 epochs trained"
    assert says(
        [row["text"] for row in read_rows(tmp_path, "events.jsonl")],
        "not-finite-back-to",
        "features.1.running_mean",
        "step-0",
    )
    assert_all_finite(tmp_path)


def test_a_mask_of_minus_infinity_is_no_fault(tmp_path: Path) -> None:
    """Networks keep their attention masks in buffers; such a run ended with a traceback."""

    def add_mask(training_run: run.Run) -> None:
        training_run.model.register_buffer("mask", torch.tensor([0.0, -float("inf")]))

    training_run = tiny.assemble_run(tmp_path, tiny.job())
    add_mask(training_run)
    training_run.metrics, saver = MetricsLog(tmp_path), Saver(training_run)
    saver.save_final()
    assert loop.fit(training_run, saver, SilentProgress()) == "all 3 epochs trained"  # type: ignore[arg-type]
    training_run.metrics.close()
    next(training_run.model.parameters()).data[0] = float("nan")
    with pytest.raises(NotFinite, match=r"features\.0\.weight$"):
        saver.check_finite()


def accept(numerics: NonfiniteGuard, loss: float) -> str | None:
    return numerics.record_good(loss, (0, 7), lambda: torch.arange(2).numpy())


def test_spikes() -> None:
    warn, back, ignore = (NonfiniteGuard(kind) for kind in ("warn", "rollback", "ignore"))
    for numerics in (warn, back, ignore):
        for _ in range(50):
            assert accept(numerics, 1.0) is None
    assert says_only(accept(warn, 11.0), "loss-jumped-times-median", 11, 11, 50)
    assert accept(ignore, 11.0) is None
    with pytest.raises(NotFinite, match=r"the loss jumped .* samples \[0, 1\]"):
        accept(back, 11.0)
    back.roll_back(NotFinite("the loss jumped"))
    assert back.skipped_batches == {(0, 7)}


def test_a_jump_of_small_losses_is_no_spike() -> None:
    numerics = NonfiniteGuard("warn")
    for loss in [2.0] * 50 + [0.01] * 60:
        assert accept(numerics, loss) is None
    restored = NonfiniteGuard("warn")
    restored.load(numerics.state())
    for guard in (numerics, restored):
        assert accept(guard, 0.9) is None
        assert says_only(accept(guard, 1.1), "loss-jumped-times-median", "1.1", 110, 50)


@pytest.mark.parametrize(("usual", "word"), [(0.0, "from a median of 0"), (-2.0, "from a median of -2")])
def test_a_jump_from_a_non_positive_loss(usual: float, word: str) -> None:
    numerics = NonfiniteGuard("warn")
    for _ in range(50):
        assert accept(numerics, usual) is None
    assert says_only(accept(numerics, 30.0), "loss-jumped-last-steps", 30, word, 50)


def test_a_spike_rolls_back_and_skips_its_batch(tmp_path: Path) -> None:
    training_run, reason = fit(tmp_path, add_outliers((15, 2)), ROLLBACK, epochs=20)
    assert reason == "all 20 epochs trained"
    assert (training_run.numerics.rollbacks, training_run.numerics.skipped_batches) == (1, {(15, 2)})
    (text,) = [row["text"] for row in read_rows(tmp_path, "events.jsonl") if "back to" in row["text"]]
    assert says(text, "loss-jumped-to")
    assert text.endswith("; back to step-0, skipping batches: epoch 16 batch 3")
    ids = training_run.batches.order(15, 2)[0].tolist()
    assert f"samples {ids}; back" in text
    steps = [row["step"] for row in read_rows(tmp_path, "metrics.jsonl") if "lr" in row]
    assert steps == [step for step in range(1, 81) if step != 63]


def test_a_spike_is_detected_after_a_resume(tmp_path: Path) -> None:
    """The window is in the checkpoint: stopped just before the spike, the run ends with the bits of one in peace."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    uninterrupted_run, _ = fit(tmp_path / "a", add_outliers((15, 2)), ROLLBACK, epochs=20)

    def stop(training_run: run.Run) -> None:
        add_outliers((15, 2))(training_run)
        training_run.signals.check = lambda: _stop_at(training_run, 62)  # type: ignore[method-assign]

    with pytest.raises(Stopped):
        fit(tmp_path / "b", stop, ROLLBACK, epochs=20)
    training_run = tiny.assemble_run(tmp_path / "b", tiny.job(train=ROLLBACK, epochs=20))
    add_outliers((15, 2))(training_run)
    loaded, _ = load_latest(tmp_path / "b" / "checkpoints")
    assert loaded is not None
    assert loaded.path.name == "step-62"
    run_state.restore(training_run, loaded)
    training_run.metrics = MetricsLog(tmp_path / "b", after=62, epoch=15)
    loop.fit(training_run, Saver(training_run), SilentProgress())  # type: ignore[arg-type]
    training_run.metrics.close()
    assert (
        "back to step-62, skipping batches: epoch 16 batch 3" in read_rows(tmp_path / "b", "events.jsonl")[-1]["text"]
    )
    assert all(
        torch.equal(v, training_run.model.state_dict()[k]) for k, v in uninterrupted_run.model.state_dict().items()
    )


def _stop_at(training_run: run.Run, step: int) -> None:
    if training_run.counters.step == step:
        Saver(training_run).save_final()
        raise Stopped("a stop")


@pytest.mark.nightly
def test_the_second_spike_is_the_end(tmp_path: Path) -> None:
    with pytest.raises(NumericsError, match=r"the loss jumped .*, and the run has already been rolled back once"):
        fit(tmp_path, add_outliers((15, 2), (17, 0)), ROLLBACK, epochs=20)
    assert_all_finite(tmp_path)


def test_the_scaler_collapse_is_detected() -> None:
    numerics, ids = NonfiniteGuard("warn"), torch.arange(2).numpy()
    for _ in range(19):
        numerics.record_skipped((0, 0), ids, 1024.0)
    with pytest.raises(NumericsError, match="collapsed to 1024 after 20 skipped steps"):
        numerics.record_skipped((0, 0), ids, 1024.0)
    with pytest.raises(NumericsError, match=r"collapsed to 0\.5"):
        NonfiniteGuard("warn").record_skipped((0, 0), ids, 0.5)


def test_all_tensors_are_looked_at_in_one_reading() -> None:
    """Each reading waits for a GPU; a sum that overflows is no reason to complain."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Readings(TorchDispatchMode):
        count = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.count += func.overloadpacket.__name__ in ("_local_scalar_dense", "is_nonzero")
            return func(*args, **(kwargs or {}))

    tensors = {f"{i}": torch.ones(3) for i in range(9)} | {"count": torch.tensor(3)}
    with Readings() as readings:
        assert list_nonfinite(tensors.items()) == []
    assert readings.count == 0
    large = torch.full((4,), 60000.0, dtype=torch.float16)
    nan = torch.tensor([1.0, float("nan")], dtype=torch.float64)
    assert list_nonfinite({"large": large, "nan": nan, **tensors, "infinite": torch.tensor(float("inf"))}.items()) == [
        "nan",
        "infinite",
    ]
    assert list_nonfinite([]) == []


def test_a_rollback_counts_no_second_twice(tmp_path: Path) -> None:
    """A rollback keeps the seconds of this attempt, whose clock continues."""
    training_run, _ = fit(tmp_path, at_steps(5, 6, 7, action=nan_input))
    assert training_run.counters.seconds == 0
