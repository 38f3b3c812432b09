"""The loop.

for each epoch
    for each batch            order from (seed, epoch)
        prepare, mix          augmentation from (seed, epoch, sample), mixup from (seed, step)
        step                  forward, backward, update
        record, save if due
    evaluate, watch, save if best
"""

from __future__ import annotations

import time
from typing import Any

from runtime.data.dataset import Batch
from runtime.errors import NumericsError, Stopped
from runtime.evaluate import evaluate
from runtime.job.values import interval
from runtime.progress import Progress
from runtime.run import Run

CHECK_EVERY = 1.0
"""Seconds between two readings of the loss for the screen; each reading waits for the GPU."""


def fit(run: Run, progress: Progress) -> str:
    """Train to the end.

    Returns:
        Why the training ended.

    Raises:
        Stopped: on a signal, after a checkpoint if there is progress.
        NumericsError: if the loss or the gradient is not finite.
    """
    reason: str | None = None
    due = Due(run)
    while reason is None and run.counters.epoch < run.job.train.epochs:
        reason = _epoch(run, progress, due)
        run.signals.check()
        with run.clock.phase("evaluate"):
            run.last, confusion = evaluate(run)
        _record_evaluation(run, progress, confusion)
        reason = reason or run.watch.stop()
        if due.now(epoch_ended=True):
            run.save()
    return reason or f"all {run.job.train.epochs} epochs are done"


def _epoch(run: Run, progress: Progress, due: Due) -> str | None:
    """One epoch, from wherever the counters stand; why the training should end, or None."""
    counters = run.counters
    run.train_mode()
    with run.clock.phase("train"):
        for batch in run.clock.waiting("input", run.batches.epoch(counters.epoch, counters.batch)):
            if run.steps_done():
                break
            if run.time_left() < due.margin:
                raise Stopped(f"max_time of {run.job.train.max_time} is spent")
            _advance(run, batch, progress)
            run.signals.check()
            if due.now():
                run.save()
    return f"{counters.step} steps are done" if run.steps_done() else None


def _advance(run: Run, batch: Batch, progress: Progress) -> None:
    counters = run.counters
    ready = run.prepared(batch, counters.epoch)
    rate = run.set_rate()
    run.seed_step()
    with run.signals.held():
        outcome = run.step(ready)
        loss, norm = float(outcome.loss), float(outcome.grad_norm)
        if not (loss - loss == 0 and norm - norm == 0):
            raise NumericsError(
                f"step {counters.step + 1}: loss {loss}, gradient norm {norm}", "finite numbers",
                "lower train.optimizer.lr, set train.clip_norm, or look for NaN in the data",
            )  # fmt: skip
        if run.ema:
            run.ema.update(run.model)
        counters.step += 1
        counters.batch += 1
        counters.samples += len(batch)
        assert run.metrics is not None
        run.metrics.write(counters.step, counters.epoch, {"train/loss": loss, "lr": rate, "grad_norm": norm})
    progress.step(run, loss)


def _record_evaluation(run: Run, progress: Progress, confusion: dict[str, Any]) -> None:
    counters = run.counters
    with run.signals.held():
        best = run.watch.update(run.last, counters.step, counters.epoch)
        assert run.metrics is not None
        run.metrics.write(counters.step, counters.epoch, run.last)
        if best:
            run.save(f"best-{counters.step}", {"metrics": run.last, "confusion": confusion})
        progress.evaluation(run, best)
        counters.epoch, counters.batch = counters.epoch + 1, 0


class Due:
    """When the next checkpoint is due."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.kind, self.every = interval(run.job.checkpoint.every)
        self.margin = 0.0
        self.last = time.monotonic()

    def now(self, epoch_ended: bool = False) -> bool:
        """Whether to save now; resets the interval if so."""
        if self.kind == "epoch":
            due = epoch_ended
        elif self.kind == "steps":
            due = not epoch_ended and self.run.counters.step % int(self.every) == 0
        else:
            due = time.monotonic() - self.last >= self.every
        if due:
            self.last = time.monotonic()
        return due
