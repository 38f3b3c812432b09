"""Runs the learning-rate range test as a child of `drivetrain bench lr`: records the loss while the rate grows.

The rate grows exponentially. For every window of a fifth of the steps, a line is fitted to the loss over the logarithm of
the rate. The suggestion is the center of the window where the loss falls fastest, if it falls by more than its noise.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from drivetrain.data.dataset import Batch
from drivetrain.errors import NumericsError, SpecError
from drivetrain.system.console import say
from drivetrain.system.files import blame_storage, write_json
from drivetrain.training import batch_inputs, optimizer
from drivetrain.training.phase_timer import PhaseTimer
from drivetrain.training.run import Run
from drivetrain.tuning import assembly
from drivetrain.tuning.measuring_child import MeasuringCall

Floats = npt.NDArray[np.float64]
MEAN_DECAY = 0.8
"""Decay of the running mean of the loss, which ends the test but does not affect the suggestion."""
DIVERGED_RATIO = 4.0
"""The test ends if the running mean exceeds its best value by this factor and is above its start."""
LOWEST_RATE, HIGHEST_RATE, STEPS = 1e-6, 10.0, 100
"""First and last learning rate, and the number of mini-batches."""
FALLING_STANDARD_ERRORS = 3.0
"""A window counts as falling if its slope is below zero by this many standard errors."""


def measure(call: MeasuringCall) -> None:
    """Train with growing rates, and report the suggestion."""
    run = assembly.assemble_run(call.folder, call.job, call.signals, PhaseTimer(), is_measured=call.is_measured)
    rates, losses = measure_losses(run, LOWEST_RATE, HIGHEST_RATE, STEPS)
    report(run, rates, losses, call.folder)


def measure_losses(run: Run, lowest: float, highest: float, steps: int) -> tuple[Floats, Floats]:
    """Measure the loss of each step before its update; returns the tried rates and their losses.

    Raises:
        SpecError: if the run does not train by steps.
        NumericsError: if fewer than a fifth of the steps gave finite numbers.
        Stopped: on a signal.
    """
    if run.only_solves_heads:
        raise SpecError(
            "bench lr: the heads of this job are solved, so no learning rate has an effect",
            "a job that trains by steps",
            "add --set train.solve_heads=false",
        )
    rates, losses = np.geomspace(lowest, highest, steps), []
    total = weight = 0.0
    best_mean = start_mean = math.inf
    run.train_mode()
    for rate, (epoch, batch) in zip(rates.tolist(), _repeat_epochs(run), strict=False):
        optimizer.set_rate(run.optimizer, rate)
        result = run.step(batch_inputs.prepare(run, batch, epoch), batch_inputs.share_batch(run))
        run.counters.step += 1
        run.signals.check()
        if not result.finite:
            break
        losses.append(result.loss)
        # Running mean of the losses, divided by the sum of its weights.
        total = MEAN_DECAY * total + (1 - MEAN_DECAY) * result.loss
        weight = MEAN_DECAY * weight + 1 - MEAN_DECAY
        mean = total / weight
        best_mean = min(best_mean, mean)
        if len(losses) <= steps // 10:
            start_mean = mean
        elif mean > max(DIVERGED_RATIO * best_mean, start_mean):
            break
    if len(losses) < steps // 5:
        raise NumericsError(
            f"the loss is NaN or infinite from a learning rate of {rates[len(losses)]:.2g} on",
            "a finite loss in at least a fifth of the test",
            "scale the inputs, or clip gradients: --set train.clip_norm=1",
        )
    return rates[: len(losses)], np.array(losses)


def _repeat_epochs(run: Run) -> Iterator[tuple[int, Batch]]:
    """Yield the batches of one epoch after the other without end, each with the number of its epoch."""
    for epoch in itertools.count():
        for batch in run.batches.epoch(epoch):
            yield epoch, batch


def suggest_rate(rates: Floats, losses: Floats, steps: int) -> float | None:
    """Suggest a rate by the rule in the module's docstring, rounded to two digits; None if the loss never falls."""
    steepest_log_rate = find_steepest(np.log(rates), losses, max(5, steps // 5))
    return None if steepest_log_rate is None else float(f"{math.exp(steepest_log_rate):.1e}")


def find_steepest(x: Floats, y: Floats, width: int) -> float | None:
    """Find the center of the window of `width` points with the steepest fall; None if y clearly falls in no window."""
    if len(x) < width:
        return None
    xs, ys = (np.lib.stride_tricks.sliding_window_view(values, width) for values in (x, y))
    dx, dy = (values - values.mean(axis=1, keepdims=True) for values in (xs, ys))
    spread = (dx**2).sum(axis=1)
    slopes = (dx * dy).sum(axis=1) / spread
    errors = np.sqrt(((dy - slopes[:, None] * dx) ** 2).sum(axis=1) / (width - 2) / spread)
    falling = slopes < -FALLING_STANDARD_ERRORS * errors
    if not falling.any():
        return None
    return float(xs[int(np.where(falling, slopes, np.inf).argmin())].mean())


def report(run: Run, rates: Floats, losses: Floats, folder: Path) -> None:
    """Print some of the losses and the line for the spec; write lr.json.

    Raises:
        StorageError: if it cannot be written.
    """
    name, suggested = run.job.train.optimizer.name, suggest_rate(rates, losses, STEPS)
    say(f"{'rate':>10}  {'loss':>10}")
    for i in np.unique(np.linspace(0, len(rates) - 1, 12).round().astype(int)):
        say(f"{rates[i]:10.1e}  {losses[i]:10.4f}")
    if suggested is None:
        say("no suggestion: the loss never falls by more than its noise; try a larger train.batch_size")
    else:
        say(
            f"suggested: {suggested:g}, where the loss falls fastest; in the spec, under train:\n"
            f"  optimizer: {{name: {name}, lr: {suggested:g}}}"
        )
    rows = [{"lr": rate, "loss": loss} for rate, loss in zip(rates.tolist(), losses.tolist(), strict=True)]
    with blame_storage(folder):
        write_json(folder / "lr.json", {"optimizer": name, "suggested": suggested, "steps": rows})
    say(f"the numbers are in {folder}/lr.json")
