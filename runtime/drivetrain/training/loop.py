"""Trains epoch by epoch.

for each epoch
    for each batch            order from (seed, epoch)
        preprocess, mix       augmentation from (seed, epoch, sample), mixup from (seed, step)
        train step            forward, backward, all-reduce of the gradients, update
        record, save if due
    evaluate, update best metric, save if best

Several processes (ranks) run this loop in lockstep: each computes its shard of every batch. A rank with an error, such as
a signal or a number that is not finite, holds it in `run.lockstep` until all ranks raise the most severe error together.
"""

from __future__ import annotations

import contextlib

from drivetrain.data.dataset import Batch
from drivetrain.system.fault_points import fault_point
from drivetrain.training import batch_inputs, epoch, solved_heads, trained_layers
from drivetrain.training.nonfinite import RollBack
from drivetrain.training.profiling import Profiler
from drivetrain.training.progress import Progress
from drivetrain.training.run import Run
from drivetrain.training.saver import Saver
from drivetrain.training.step_records import StepRecords
from drivetrain.training.step_result import StepResult


def fit(run: Run, saver: Saver, progress: Progress, profiler: Profiler | None = None) -> str:
    """Train the run to its end.

    Returns:
        The reason why the training ended.

    Raises:
        Stopped: if `max_time` has passed.
        Interrupted: on a signal.
        NumericsError: if a second rollback would be necessary, or fp16 has collapsed and the job has no fallback.
    """
    records = StepRecords(run, saver, progress, profiler)
    # A signal to one of several processes must wait until all of them stop together.
    protection = run.signals.protect_section() if run.ranks.world_size > 1 else contextlib.nullcontext()
    with contextlib.closing(records), protection:
        # A run that was killed after its last epoch trains no epoch here, but still evaluates its weights.
        trained_layers.enter_stage(run)
        reason = epoch.find_reason_to_end(run)
        while reason is None:
            try:
                train_epoch(run, records)
                epoch.evaluate_epoch(run, records)
            except RollBack as error:
                epoch.roll_back(run, records, error)
            reason = epoch.find_reason_to_end(run)
        fault_point("trained", run)
        return reason


def train_epoch(run: Run, records: StepRecords) -> None:
    """Train an epoch, starting at the position of the counters."""
    trained_layers.enter_stage(run)
    trained_layers.announce_stage(run)
    if run.solves_heads:
        solved_heads.solve_heads(run)
        return
    run.train_mode()
    with epoch.open_batches(run) as batches, records.complete_at_stop():
        with run.clock.phase("train"):
            while run.has_next_batch():
                batch = epoch.fetch_batch(run, batches)
                result = train_step(run, records, batch)
                records.end_step(result)
        with run.lockstep.raising_together():
            records.check_last_step()


def train_step(run: Run, records: StepRecords, batch: Batch) -> StepResult | None:
    """Train one step on this rank's shard of a batch; weights, counters and records change together or not at all.

    Returns:
        The result; None if the batch is skipped, or if this rank holds an error of the update.

    Raises:
        BaseException: the most severe error that any rank had before this step or in its gradients.
    """
    fault_point("batch", run, batch)
    counters = run.counters
    batch_samples = run.batches.size(counters.batch)
    with run.signals.protect_section():
        if (counters.epoch, counters.batch) in run.numerics.skipped_batches:
            run.lockstep.raise_together()
            counters.end_step(batch_samples)
            return None
        fault_point("step", run)
        batch = batch_inputs.prepare(run, batch, counters.epoch)
        share = batch_inputs.share_batch(run, batch_samples)
        learning_rate = run.set_learning_rates()
        # A CUDA graph replays forward, backward, update and average at once, in a process that trains alone.
        result = run.step.replay(batch, share)
        if result is None:
            loss = run.step.compute_gradients(batch, share)
        else:
            run.lockstep.time_share = run.lockstep.measure_time_share()
        # The ranks have exchanged their errors with the loss, so an error of the update waits for the next exchange.
        with run.lockstep.holding_errors():
            if result is None:
                result = run.step.update(loss, len(batch))
                if run.ema:
                    run.ema.update(run.model, result.finite_on_device)
            records.add(result, learning_rate)
        counters.end_step(batch_samples)
    return result
