"""A stand-in for the graphs of a GPU, and the bits of values, for tests of captured steps."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from drivetrain.data.dataset import Batch
from drivetrain.job.train import Fp16
from drivetrain.training import batch_inputs
from drivetrain.training.captured_step import StepCapture
from drivetrain.training.run import Run
from tests import tiny

SCALING = Fp16(initial_scale=3.0e4, growth_interval=2, growth_factor=1.7, backoff_factor=0.3, max_scale=40000.0)


class Replayer:
    """Stands in for a device: a replay does the captured work again."""

    def __init__(self) -> None:
        self.replays = 0

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        def replay() -> None:
            self.replays += 1
            work()

        return replay


def bits(value: Any) -> Any:
    return value.contiguous().view(-1).view(torch.uint8).tolist() if isinstance(value, torch.Tensor) else value


def train_epochs(run: Run, device: Any, spoil: int = -1, epochs: int = 3, steps: int = 0) -> dict[str, Any]:
    """Train a few epochs, and return weights, moments and numbers; no step is captured without a `device`.

    With `steps`, train this many times on the first batch.
    """
    messages = list[str]()
    update_average = partial(run.ema.update, run.model) if run.ema else lambda finite: None
    capture = StepCapture(device and device.capture, update_average, messages.append)
    capture.failure = None if device else "as usual"
    run.step.use_capture(capture)
    run.step.updater.prefers_device = True
    numbers = []
    for epoch in range(epochs):
        run.train_mode()
        batches = run.batches.epoch(epoch)
        for number, batch in enumerate([next(batches)] * steps if steps else batches):
            number = 0 if steps else number
            prepared_batch = batch_inputs.prepare(run, batch, epoch)
            if run.counters.step == spoil:
                prepared_batch = Batch(
                    prepared_batch.ids, tuple(x * float("nan") for x in prepared_batch.inputs), prepared_batch.targets
                )
            run.rates.set(run.counters, run.best_metric.factor())
            replays_before = getattr(device, "replays", 0)
            result = run.step(prepared_batch, batch_inputs.share_batch(run, run.batches.size(number)))
            if getattr(device, "replays", 0) == replays_before:  # a captured step has averaged them itself
                update_average(result.finite_on_device)
            numbers.append(result.read())
            run.counters.step += 1
    state = {name: value.clone() for name, value in run.model.state_dict().items()}
    moments = [value for entry in run.optimizer.state.values() for value in entry.values()]
    average = list(run.ema.average.values()) if run.ema else []
    scaler = run.step.updater.scaler
    return {
        "numbers": torch.tensor(numbers, dtype=torch.float64),
        **state,
        **{f"moment {n}": value for n, value in enumerate(moments)},
        **{f"average {n}": value for n, value in enumerate(average)},
        "scale": torch.tensor([scaler.scale, float(scaler.good_steps)]),
        "messages": messages,
    }


def assemble_run(folder: Path, train: str, scaled: bool) -> Run:
    folder.mkdir()
    torch.manual_seed(0)
    run = tiny.assemble_run(folder, tiny.job(train=train), settings={"fused_optimizer": True})
    if scaled:  # as fp16 is, in a format that a CPU computes
        run.step.scale_losses(SCALING)
    return run
