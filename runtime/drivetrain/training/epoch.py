"""Runs an epoch around its steps: opens batches, evaluates, decides whether to end, and rolls back to a checkpoint."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Generator, Iterator

from drivetrain.data.dataset import Batch
from drivetrain.errors import Stopped
from drivetrain.system.fault_points import fault_point
from drivetrain.training.checkpoints import rank_checkpoints, run_state
from drivetrain.training.evaluation.validation import check_precision, evaluate
from drivetrain.training.nonfinite import Fp16Collapse, NotFinite, RollBack
from drivetrain.training.run import Run
from drivetrain.training.step_records import StepRecords


def find_reason_to_end(run: Run) -> str | None:
    """Return the reason why the training ends; None if it continues, as it always does in the middle of an epoch."""
    if not run.counters.batch:
        if run.stop_reason is not None:
            return f"ended by {run.stop_reason}"
        if run.counters.solved and run.only_solves_heads:
            return "the heads are solved"
        if run.reached_step_limit():
            limit = f"of train.within: {run.job.train.within}, " if run.time_target else ""
            return f"{limit}{run.counters.step} steps trained"
        early_stop = run.best_metric.reason_to_stop()
        if early_stop:
            return early_stop
    epochs = run.job.train.epochs
    if run.time_target or run.counters.epoch < epochs:
        return None
    return "1 epoch trained" if epochs == 1 else f"all {epochs} epochs trained"


@contextlib.contextmanager
def open_batches(run: Run) -> Iterator[Generator[Batch]]:
    """Open the batches of the epoch, starting at the position of the counters."""
    batches = run.clock.time_waiting("input", run.batches.epoch(run.counters.epoch, run.counters.batch))
    try:
        yield batches
    except RollBack:
        # The traceback keeps the iterator and its loader workers alive, next to the workers of the next try.
        batches.close()
        raise


def fetch_batch(run: Run, batches: Iterator[Batch]) -> Batch:
    """Return the next batch. A process that trains alone raises an error instead, such as a signal or `max_time`."""
    if run.ranks.world_size > 1:
        # The other ranks wait for the gradients of this one, even if it has an error.
        batch = next(batches)
        if run.ranks.is_rank0 and run.time_left() <= 0:
            run.lockstep.hold(_time_is_up(run))
        return batch
    if run.lockstep.held_error is not None:
        run.lockstep.raise_together()
    with run.signals.allow_interruption():
        batch = next(batches)
    if run.time_left() <= 0:
        raise _time_is_up(run)
    return batch


def _time_is_up(run: Run) -> Stopped:
    return Stopped(f"max_time of {run.job.train.max_time} has passed")


def evaluate_epoch(run: Run, records: StepRecords) -> None:
    """Evaluate the weights, and end the epoch; raises the same error in all processes."""
    begin = time.monotonic()
    with run.clock.phase("evaluate"):
        run.last_metrics, confusion = evaluate(run)
        check_precision(run)
    if run.time_target:
        run.time_target.add_evaluation(time.monotonic() - begin)
    with run.lockstep.raising_together():
        record_evaluation(run, records, confusion)


def record_evaluation(run: Run, records: StepRecords, confusion: dict[str, object]) -> None:
    """Record an evaluation, save the weights if they are the best so far, and end the epoch.

    Raises:
        NotFinite: if a weight that would be saved is not finite.
    """
    fault_point("record evaluation")
    counters = run.counters
    with run.signals.protect_section():
        is_best = _record_metrics(run, records, confusion)
        # Before the save, so that a checkpoint at the end of this epoch resumes with the next one.
        counters.epoch, counters.batch = counters.epoch + 1, 0
    if records.saver.is_due(epoch_ended=True):
        records.saver.save_periodically()
    info = run.collect_info(counters.epoch, metrics=dict(run.last_metrics), best=is_best)
    reason = run.user_parts.callbacks.call("on_epoch", info)
    run.stop_reason = run.stop_reason or reason


def _record_metrics(run: Run, records: StepRecords, confusion: dict[str, object]) -> bool:
    """Record the last metrics, and save the weights if they are the best so far; returns whether they are the best."""
    counters, best_before = run.counters, run.best_metric.best.best
    is_best = run.best_metric.update(run.last_metrics, counters.step, counters.epoch)
    assert run.metrics is not None
    run.metrics.write(counters.step, counters.epoch, run.last_metrics)
    if is_best:
        records.saver.save_best({"metrics": run.last_metrics, "confusion": confusion})
    label = ""
    if is_best:
        # Ties go to the lower loss.
        is_tie = run.best_metric.best.best == best_before
        label = "best, by its loss" if is_tie else "best"
    records.progress.report_evaluation(run, label)
    return is_best


def roll_back(run: Run, records: StepRecords, error: RollBack) -> None:
    """Restore the last checkpoint, and record the reason and the change: batches are skipped, or fp32 replaces fp16.

    Raises:
        NumericsError: if this would be the second rollback because of numbers that are not finite.
    """
    # A signal in the middle of a rollback would leave weights and counters of two different steps.
    with run.signals.protect_section():
        kind, consequence = "memory", ""
        if isinstance(error, NotFinite):
            run.numerics.roll_back(error)
            skipped = ", ".join(f"epoch {e + 1} batch {b + 1}" for e, b in sorted(run.numerics.skipped_batches))
            kind, consequence = "numbers", f", skipping batches: {skipped or 'none'}"
        elif isinstance(error, Fp16Collapse):
            kind, consequence = "precision", ", continuing in fp32 (train.fp16.fallback)"
        checkpoint_name = _restore_checkpoint(run, records)
        run.events.add(kind, f"{error}; back to {checkpoint_name}{consequence}", run.counters.step)
        if isinstance(error, Fp16Collapse):
            run.step.fall_back_to_fp32()


def _restore_checkpoint(run: Run, records: StepRecords) -> str:
    """Restore the last checkpoint, and drop all later records; returns the checkpoint's name."""
    fault_point("roll back", run)
    records.drop()
    # The traceback of the error keeps tensors alive.
    run.lockstep.last_held_error = None
    # A save in the background may still be writing the checkpoint to restore.
    records.saver.wait()
    # One process may have halved its micro-batches before the error; all processes continue with the smallest size.
    sizes = [int(row[0]) for row in run.ranks.all_gather([run.step.forward.micro_batch or 0])]
    run.step.use_micro_batch(min(filter(None, sizes), default=None))
    loaded, damaged = rank_checkpoints.load_latest(run)
    assert loaded is not None, "a checkpoint is written before the first step"
    for line in damaged:
        run.events.add("storage", line)
    # The clock of this attempt keeps running, so its seconds in the checkpoint would count twice.
    earlier_seconds = run.counters.seconds
    run_state.restore(run, loaded)
    run.counters.seconds = earlier_seconds
    assert run.metrics is not None
    run.metrics.remove_rows_after(run.counters.step, run_state.count_evaluated_epochs(run))
    return loaded.path.name
