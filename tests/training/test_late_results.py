"""The result of a step is read after the next ones have been queued, and nothing else changes.

Every case trains twice on the CPU: as a CPU does, where the host knows each result before the update, and as a GPU does,
where the device leaves weights, buffers, average and scale as they were. Weights, buffers, metrics, events and
checkpoints must be equal, bit for bit.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from drivetrain.errors import NumericsError, Stopped
from drivetrain.job.train import Fp16
from drivetrain.system.run_files import list_checkpoints
from drivetrain.system.signals import Interrupted
from drivetrain.tracking.metrics_log import MetricsLog
from drivetrain.training import loop, run, train
from drivetrain.training.checkpoints import checkpoint
from drivetrain.training.saver import Saver
from drivetrain.training.step_result import StepResult
from tests import tiny
from tests.training.hooked_run import (
    ROLLBACK,
    SilentProgress,
    add_outliers,
    at_steps,
    nan_gradient,
    nan_input,
    read_rows,
    run_out_of_memory,
)


def spoil_nothing(training_run: run.Run) -> None:
    """No fault."""


def spoil_at(*steps: int, action: Callable[[run.Run], object]) -> Callable[[run.Run], None]:
    """Make a new hook as in `at_steps` for each run."""
    return lambda training_run: at_steps(*steps, action=action)(training_run)  # type: ignore[arg-type]


def replace_buffer(training_run: run.Run) -> None:
    """A network that assigns a buffer in step 6: the device cannot restore that one by itself."""

    def hook(module: torch.nn.Module, inputs: Any, outputs: Any) -> None:
        if training_run.counters.step == 5 and module.training:
            module.running_mean = module.running_mean.clone()

    next(m for m in training_run.model.modules() if isinstance(m, torch.nn.BatchNorm2d)).register_forward_hook(hook)


def exhaust_memory_in_update(training_run: run.Run) -> None:
    """Memory that runs out in the middle of the fourth update: back to the checkpoint of step 0."""
    original_step, calls = training_run.optimizer.step, [0]

    def step() -> None:
        calls[0] += 1
        if calls[0] == 4:
            run_out_of_memory()
        original_step()

    training_run.optimizer.step = step  # type: ignore[method-assign, assignment]


SCALING = Fp16(initial_scale=3.0e4, growth_interval=2, growth_factor=1.7, backoff_factor=0.3, max_scale=40000.0)


@dataclass(frozen=True)
class Case:
    """A job and what happens to it."""

    train: str = ""
    spoil: Callable[[run.Run], None] = spoil_nothing
    epochs: int = 3
    scaling: Fp16 | None = None
    every: int = 0
    """Steps between checkpoints; 0 for none."""


CASES = {
    "plain": Case(),
    "a bad input": Case(spoil=spoil_at(5, action=nan_input)),
    "a bad gradient": Case("ema: 0.5", spoil=spoil_at(5, 7, action=nan_gradient)),
    "three in a row": Case("ema: 0.9", spoil=spoil_at(5, 6, 7, action=nan_input), every=2),
    "four in a row": Case(spoil=spoil_at(6, 7, 8, 9, action=nan_input), every=1),
    "the last of an epoch": Case("ema: 0.5", spoil=spoil_at(4, 8, 12, action=nan_gradient)),
    "the first of all": Case("ema: 0.5", spoil=spoil_at(1, 2, action=nan_input)),
    "momentum": Case("optimizer: {name: sgd, lr: 0.1, momentum: 0.9}", spoil=spoil_at(1, 5, action=nan_input)),
    "no momentum": Case("optimizer: {name: sgd, lr: 0.1, momentum: 0.0}", spoil=spoil_at(2, action=nan_input)),
    "a spike": Case(ROLLBACK, spoil=add_outliers((15, 2)), epochs=20),
    "twice three in a row": Case(spoil=spoil_at(2, 3, 4, 9, 10, 11, action=nan_input)),
    "scaled": Case("ema: 0.5", spoil_at(3, 4, 9, action=nan_gradient), scaling=SCALING, every=3),
    "scaled, then a step that the host decides": Case(
        spoil=lambda training_run: (replace_buffer(training_run), spoil_at(5, action=nan_gradient)(training_run))[1],
        scaling=SCALING,
    ),
    "scaled, then short of memory": Case("ema: 0.5", exhaust_memory_in_update, scaling=SCALING),
    "the scale collapses": Case(
        spoil=spoil_at(3, 4, 5, action=nan_gradient), scaling=Fp16(initial_scale=4, min_scale=1.0, fallback="fp32")
    ),
}


def train_case(folder: Path, case: Case, *, on_device: bool) -> dict[str, Any]:
    """Collect weights, buffers, metrics, events and checkpoints of a run."""
    folder.mkdir()
    torch.manual_seed(0)
    training_run = tiny.assemble_run(
        folder, tiny.job(train=case.train, epochs=case.epochs), settings={"fused_optimizer": True}
    )
    if case.scaling:
        training_run.step.scale_losses(case.scaling)  # scaled as fp16 is, in a format that a CPU computes
        training_run.numerics.fp16 = case.scaling
    training_run.step.updater.prefers_device = on_device
    results_on_device: list[bool] = []
    training_run.metrics, saver = MetricsLog(folder), Saver(training_run)
    if case.every:
        saver.kind, saver.interval = "steps", case.every
    saver.save_final()
    case.spoil(training_run)
    update_weights = training_run.step.updater.update

    def update(loss: torch.Tensor) -> Any:
        result = update_weights(loss)
        results_on_device.append(result.on_device)
        return result

    training_run.step.updater.update = update  # type: ignore[method-assign]
    try:
        ending = loop.fit(training_run, saver, SilentProgress())  # type: ignore[arg-type]
        saver.save_final()
    except NumericsError as error:
        ending = str(error)
    finally:
        training_run.metrics.close()
    # Before the first update there is no momentum that the device could leave alone.
    assert any(results_on_device) == on_device
    assert sum(results_on_device) >= len(results_on_device) * on_device * 0.6
    final_state = {
        "weights": {name: value.clone() for name, value in training_run.model.state_dict().items()},
        "average": training_run.ema.average if training_run.ema else {},
    }
    # A run that numbers ended may have trained one step more, which nothing keeps.
    return (final_state if "trained" in ending else {}) | {
        "ended": ending,
        "metrics": read_rows(folder, "metrics.jsonl"),
        "events": read_rows(folder, "events.jsonl"),
        "checkpoints": {path.name: read_checkpoint(path) for path in list_checkpoints(folder / "checkpoints")},
    }


def read_checkpoint(path: Path) -> dict[str, Any]:
    loaded = checkpoint.load(path)
    state = {name: value for name, value in loaded.state.items() if name not in ("counters", "identity")}
    counters = {name: value for name, value in loaded.state["counters"].items() if name != "seconds"}
    return {"state": state, "counters": counters, "tensors": loaded.tensors}


def to_bits(value: Any) -> Any:
    """Replace tensors by their bits, so that values can be compared."""
    if isinstance(value, dict):
        return {name: to_bits(part) for name, part in value.items() if name not in ("time", "seconds")}
    if isinstance(value, list):
        return [to_bits(part) for part in value]
    if isinstance(value, torch.Tensor):
        return (str(value.dtype), value.detach().contiguous().view(-1).view(torch.uint8).tolist())
    return json.dumps(value)


@pytest.mark.parametrize("name", CASES)
def test_nothing_else_changes(tmp_path: Path, name: str) -> None:
    read_at_once = train_case(tmp_path / "now", CASES[name], on_device=False)
    read_late = train_case(tmp_path / "late", CASES[name], on_device=True)
    assert read_late["ended"] == read_at_once["ended"]
    for part in read_at_once:
        assert to_bits(read_late[part]) == to_bits(read_at_once[part]), part


@pytest.mark.parametrize("bad_steps", [(), (6,), (4, 5, 6)], ids=["good", "bad", "three in a row"])
def test_a_stop_records_the_last_step_first(tmp_path: Path, bad_steps: tuple[int, ...]) -> None:
    """A problem of the last step comes before the stop: the run rolls back first, and stops there."""
    training_run = tiny.assemble_run(tmp_path, tiny.job(epochs=3), settings={"fused_optimizer": True})
    training_run.step.updater.prefers_device = True
    training_run.metrics, saver = MetricsLog(tmp_path), Saver(training_run)
    saver.save_final()
    at_steps(*bad_steps, action=nan_input)(training_run)
    # The signal comes with step 6 in the queue.
    training_run.model.register_forward_pre_hook(
        lambda *_: setattr(training_run.signals, "received", "SIGTERM") if training_run.counters.step == 5 else None
    )
    with pytest.raises((Interrupted, Stopped)):
        loop.fit(training_run, saver, SilentProgress())  # type: ignore[arg-type]
    training_run.metrics.close()
    steps = [row["step"] for row in read_rows(tmp_path, "metrics.jsonl") if "lr" in row]
    if len(bad_steps) == 3:
        assert (training_run.counters.step, steps) == (0, [])
        assert training_run.numerics.skipped_batches == {(0, 3), (1, 0), (1, 1)}
    else:
        assert (training_run.counters.step, steps) == (6, [1, 2, 3, 4, 5, 6])


def test_a_signal_within_a_step_leaves_a_row_of_the_step_before_it(tmp_path: Path) -> None:
    """Whose result the device still had: a resumed run would never write that row."""
    training_run = tiny.assemble_run(tmp_path, tiny.job(), settings={"fused_optimizer": True})
    training_run.step.updater.prefers_device = True

    def stop(module: torch.nn.Module, inputs: Any) -> None:
        if training_run.counters.step == 6 and module.training:
            training_run.signals._handle(signal.SIGTERM, None)

    training_run.model.register_forward_pre_hook(stop)
    with pytest.raises(Stopped, match="after step 6"):
        train.train(training_run)
    assert [row["step"] for row in read_rows(tmp_path, "metrics.jsonl") if "train/loss" in row] == [1, 2, 3, 4, 5, 6]


def test_the_gpu_has_further_steps_to_compute_while_the_host_waits_for_a_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host that pauses, as for a checkpoint or other programs, then does not make it wait."""
    training_run = tiny.assemble_run(tmp_path, tiny.job(epochs=2), settings={"fused_optimizer": True})
    training_run.step.updater.prefers_device = True
    queued_results, steps_queued_behind = list[StepResult](), list[int]()
    original_init, original_read = StepResult.__init__, StepResult.read

    def note_queued(self: StepResult, *arguments: Any, **options: Any) -> None:
        original_init(self, *arguments, **options)
        queued_results.append(self)

    def note_read(self: StepResult) -> tuple[float, float]:
        if self._numbers is None:
            steps_queued_behind.append(len(queued_results) - 1 - queued_results.index(self))
        return original_read(self)

    monkeypatch.setattr(StepResult, "__init__", note_queued)
    monkeypatch.setattr(StepResult, "read", note_read)
    train.train(training_run)
    # The second epoch of four steps; it ends with all results, since its weights are evaluated.
    assert (len(queued_results), steps_queued_behind[4:]) == (8, [3, 2, 1, 0])
