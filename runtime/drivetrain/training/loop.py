"""Trains epoch by epoch.

for each epoch
    for each batch            order from (seed, epoch)
        preprocess, mix       augmentation from (seed, epoch, sample), mixup from (seed, step)
        step                  forward, backward, update
        record, save if due
    evaluate, update best metric, save if best

A process with a problem, such as a signal or a number that is not finite, does not raise it at once: the others would
wait for its summand of the next sum. `run.peers` keeps it until all processes raise the most serious one in an exchange.
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
    # With several processes a signal may interrupt only where all processes exchange their problems.
    protection = run.signals.protect_section() if run.ranks.count > 1 else contextlib.nullcontext()
    with contextlib.closing(records), protection:
        # A run that was killed after its last epoch trains no epoch here, but still evaluates its weights.
        trained_layers.enter_stage(run)
        reason = epoch.find_reason_to_end(run)
        while reason is None:
            try:
                train_epoch(run, records)
                epoch.evaluate_epoch(run, records)
            except RollBack as problem:
                epoch.roll_back(run, records, problem)
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
            # The condition is the same in all processes.
            while (
                not run.reached_step_limit() and run.stop_reason is None and run.counters.batch < run.batches.per_epoch
            ):
                batch = epoch.fetch_batch(run, batches)
                result = train_step(run, records, batch)
                records.end_step(result)
        with run.peers.raising_together():
            records.check_last_step()


def train_step(run: Run, records: StepRecords, batch: Batch) -> StepResult | None:
    """Train one step on this process's shard of a batch; weights, counters and records change together or not at all.

    Returns:
        The result; None if the batch is skipped, or if this process has a problem that it raises in the next exchange.

    Raises:
        BaseException: the most serious problem that any process had before this step or in its gradients.
    """
    fault_point("batch", run, batch)
    counters = run.counters
    batch_samples = run.batches.size(counters.batch)
    with run.signals.protect_section():
        if (counters.epoch, counters.batch) in run.numerics.skipped_batches:
            run.peers.exchange_problems()
            counters.end_step(batch_samples)
            return None
        fault_point("step", run)
        batch = batch_inputs.prepare(run, batch, counters.epoch)
        share = batch_inputs.share_batch(run, batch_samples)
        learning_rate = run.set_learning_rates()
        # A replayed step includes the update of the weights and of their average. Several processes never replay.
        result = run.step.replay(batch, share)
        if result is None:
            loss = run.step.compute_gradients(batch, share)
        else:
            run.peers.refresh_time_share()
        # The processes have already exchanged the problems of this step, so a new problem waits for the next exchange.
        with run.peers.catching():
            if result is None:
                result = run.step.update(loss, len(batch))
                if run.ema:
                    run.ema.update(run.model, result.finite_on_device)
            run.local_samples += len(batch)
            records.add(result, learning_rate)
        counters.end_step(batch_samples)
    return result
