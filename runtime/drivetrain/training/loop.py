"""The training loop.

for each epoch
    for each batch            order from (seed, epoch)
        preprocess, mix       augmentation from (seed, epoch, sample), mixup from (seed, step)
        step                  forward, backward, update
        record, save if due
    evaluate, update best metric, save if best
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor

from drivetrain.data.dataset import Batch
from drivetrain.distributed import batch_parts
from drivetrain.errors import Stopped
from drivetrain.system.fault_points import fault_point
from drivetrain.system.signals import Interrupted
from drivetrain.tracking import confusion_image
from drivetrain.training import agreement, solved_heads, trained_layers
from drivetrain.training.agreement import HalfUpdated
from drivetrain.training.checkpoints import rank_checkpoints, run_state
from drivetrain.training.evaluation.validation import check_precision, evaluate
from drivetrain.training.nonfinite import Fp16Collapse, NotFinite
from drivetrain.training.profiling import Profiler
from drivetrain.training.progress import Progress
from drivetrain.training.run import Run
from drivetrain.training.saver import Saver
from drivetrain.training.step_options import SeededPart, count_largest_part
from drivetrain.training.step_records import StepRecords, TrainedStep
from drivetrain.training.step_result import StepResult
from drivetrain.training.user_parts import TrainingInfo

ROLLBACK_ERRORS = (NotFinite, Fp16Collapse, HalfUpdated)
"""Errors after which the same process continues from the last checkpoint."""


def fit(run: Run, saver: Saver, progress: Progress, profiler: Profiler | None = None) -> str:
    """Train until the end.

    Returns:
        Why the training ended.

    Raises:
        Stopped: if `max_time` has passed.
        Interrupted: on a signal.
        NumericsError: if a second rollback would be necessary.
    """
    # With several processes a signal may interrupt only where all of them exchange their problems.
    with run.signals.protect_section() if run.ranks.count > 1 else contextlib.nullcontext():
        return _train_epochs(run, saver, progress, profiler)


def _train_epochs(run: Run, saver: Saver, progress: Progress, profiler: Profiler | None) -> str:
    # Also for a run that was killed after its last epoch, which only has to evaluate its weights.
    trained_layers.enter_stage(run)
    records = StepRecords(run, progress)
    reason = _find_reason_to_end(run)
    while reason is None and run.counters.epoch < run.total_epochs:
        try:
            _train_epoch(run, saver, records, profiler)
            _report_shards(run)
            with run.clock.phase("evaluate"):
                run.last_metrics, confusion = evaluate(run)
                check_precision(run)
            agreement.raise_gravest(run.ranks, _catch_rollback(record_evaluation, run, saver, progress, confusion))
        # A signal in the middle of a rollback would leave weights and counters of two different steps.
        except NotFinite as error:
            with run.signals.protect_section():
                run.numerics.roll_back(error)
                _roll_back(run, saver, records, "numbers", str(error), f", skipping batches: {_describe_skipped(run)}")
        except Fp16Collapse as error:
            with run.signals.protect_section():
                _roll_back(run, saver, records, "precision", str(error), ", continuing in fp32 (train.fp16.fallback)")
                run.step.fall_back_to_fp32()
        except HalfUpdated as error:
            with run.signals.protect_section():
                _roll_back(run, saver, records, "memory", str(error))
        reason = _find_reason_to_end(run)
    fault_point("trained", run)
    epochs = run.total_epochs
    return reason or ("1 epoch trained" if epochs == 1 else f"all {epochs} epochs trained")


def _report_shards(run: Run) -> None:
    """Record the number of shards that are fetched at the same time, if it has changed, with the reason."""
    prefetched = run.readable.fetched
    if prefetched and prefetched.width.take_news():
        run.events.add("shards", f"fetched ahead as far as the cache has space: {prefetched.width.reason}")


def _find_reason_to_end(run: Run) -> str | None:
    """Why the training ends before its last epoch; None if it goes on, and always in the middle of an epoch."""
    if run.counters.batch:
        return None
    if run.stop_reason is not None:
        return f"ended by {run.stop_reason}"
    if run.counters.solved and run.ends_solved:
        return "the heads are solved"
    return f"{run.counters.step} steps trained" if run.reached_step_limit() else run.best_metric.reason_to_stop()


def _train_epoch(run: Run, saver: Saver, records: StepRecords, profiler: Profiler | None) -> None:
    """Train an epoch from the batch that the counters point to."""
    trained_layers.enter_stage(run)
    trained_layers.announce_stage(run)
    if run.solves_heads:
        solved_heads.solve_heads(run)
        return
    run.train_mode()
    batches = run.clock.time_waiting("input", run.batches.epoch(run.counters.epoch, run.counters.batch))
    try:
        _train_batches(run, saver, records, profiler, batches)
    except ROLLBACK_ERRORS:
        # The traceback keeps the iterator alive, and with it loader workers beside those of the next try.
        batches.close()
        raise


def _train_batches(
    run: Run, saver: Saver, records: StepRecords, profiler: Profiler | None, batches: Iterator[Batch]
) -> None:
    """Train on the batches of an epoch.

    If only this process has a problem, it must not raise it at once: the others would wait for its part of the next sum.
    The problem is passed to the next step, or to `_raise_agreed` after the last one, where all raise the same error.
    """
    problem: BaseException | None = None
    with run.clock.phase("train"):
        while _has_next_step(run):
            batch, problem = (None, problem) if problem else _fetch_batch(run, batches)
            if batch is None and problem is None:
                break
            if run.is_divided:
                # No process can miss a step, since the others need its part of the weights.
                _raise_agreed(run, records, problem)
                saver.save_together(records.flush)
            problem = _train_step(run, batch, records, problem)
            # After a problem nothing is saved or reported: the step is going to be undone.
            problem = problem or run.signals.peek() or _catch_rollback(_profile_and_save, run, saver, records, profiler)
            problem = problem or _catch_rollback(_call_on_step, run, records)
    _raise_agreed(
        run,
        records,
        problem or run.signals.peek() or _catch_rollback(records.flush) or _catch_rollback(saver.check_finite),
    )
    saver.save_together(records.flush)


def _has_next_step(run: Run) -> bool:
    """Whether another step follows in this epoch; all processes get the same answer."""
    return not run.reached_step_limit() and run.stop_reason is None and run.counters.batch < run.batches.per_epoch


def _raise_agreed(run: Run, records: StepRecords, problem: BaseException | None) -> None:
    """Agree with the other processes, and raise the most serious problem; return if no process has one."""
    agreed_problem = agreement.agree_on(run.ranks, problem)
    if agreed_problem is not None:
        raise _record_before_raising(records, agreed_problem, problem)


def _record_before_raising(
    records: StepRecords, agreed_problem: BaseException, local_problem: BaseException | None
) -> BaseException:
    """Record the last step if it is not going to be undone; returns the problem to raise.

    Args:
        agreed_problem: the most serious one of all processes.
        local_problem: the one that this process had before the step.
    """
    # A stop saves a checkpoint, so the step before it needs its row. A problem of another process: rank 0 may already
    # have recorded the row when it saved, and all must skip the same batches.
    if agreed_problem is not local_problem or isinstance(agreed_problem, Stopped | Interrupted):
        # A NaN found while recording wins over a stop: the run must go back first, and is stopped afterwards.
        return _catch_rollback(records.flush) or agreed_problem
    return agreed_problem


def _fetch_batch(run: Run, batches: Iterator[Batch]) -> tuple[Batch | None, BaseException | None]:
    """Return the next batch, None after the last, and the problem that prevents a step on it: a signal or `max_time`."""
    try:
        with run.signals.allow_interruption():
            batch = next(batches, None)
    except KeyboardInterrupt as interrupt:
        return None, interrupt
    if batch is not None and run.ranks.is_rank0 and run.time_left() <= 0:
        return batch, Stopped(f"max_time of {run.job.train.max_time} has passed")
    return batch, None


def _catch_rollback(function: Callable[..., None], *arguments: object) -> Exception | None:
    """Call a function; returns an error that requires a rollback, on which all processes have to agree first."""
    try:
        function(*arguments)
    except ROLLBACK_ERRORS as problem:
        return problem
    return None


def _profile_and_save(run: Run, saver: Saver, records: StepRecords, profiler: Profiler | None) -> None:
    if profiler:
        profiler.step()
    if saver.is_due():
        records.flush()
        saver.save_periodically()


def _train_step(
    run: Run, batch: Batch | None, records: StepRecords, problem: BaseException | None = None
) -> BaseException | None:
    """Train one step on one batch; weights, counters and records are updated together or not at all.

    Args:
        run: the training.
        batch: this process's shard; None if it has a problem.
        records: get the result of the step.
        problem: what this process met before the step.

    Returns:
        A problem found after the gradients were summed, which the other processes do not know yet.

    Raises:
        BaseException: the most serious problem of all processes, before the step or in its gradients.
    """
    fault_point("batch", run, batch)
    counters, late_problem = run.counters, None
    position, samples = (counters.epoch, counters.batch), run.batches.size(counters.batch)
    run.step_result = None
    with run.signals.protect_section():
        if position in run.numerics.skipped_batches:
            _raise_agreed(run, records, problem)
        else:
            late_problem = _compute_and_update(run, batch, position, records, problem)
        # Also after a late problem: the other processes have trained this step, and learn of it in the next.
        counters.step += 1
        counters.batch += 1
        counters.samples += samples
    return late_problem


def _compute_and_update(
    run: Run, batch: Batch | None, position: tuple[int, int], records: StepRecords, problem: BaseException | None
) -> BaseException | None:
    """Compute the gradients of a batch and update the weights; returns and raises as `_advance`."""
    fault_point("step", run)
    samples = run.batches.size(position[1])
    run.step.state.batch_samples = run.batch_parts.count_computed(samples)
    run.step.state.loss_share = 1.0 if run.batch_parts.is_whole(samples) else 1 / run.ranks.count
    try:
        if problem is not None:
            # The others have started their sums: this process sends zeros and its problem, and all raise it.
            run.step.take_part_with_zeros(problem)
        assert batch is not None, "a process without a batch has a problem"
        prepared = run.mix(run.preprocess(batch, position[0]))
        parts = run.list_local_parts(samples)
        learning_rate = run.set_learning_rates()
        loss_or_result = run.step.try_replay(prepared, parts) or run.step.compute_gradients(prepared, parts)
    except (*ROLLBACK_ERRORS, Stopped, Interrupted) as agreed_problem:
        raise _record_before_raising(records, agreed_problem, problem) from None
    return _catch_rollback(_update_and_record, run, position, records, learning_rate, loss_or_result, parts)


def _update_and_record(
    run: Run,
    position: tuple[int, int],
    records: StepRecords,
    learning_rate: float,
    loss_or_result: Tensor | StepResult,
    parts: list[SeededPart],
) -> None:
    """Update the weights, and record the step; a replayed step has a result, because it has updated them already."""
    if isinstance(loss_or_result, StepResult):
        result = loss_or_result
    else:
        result = run.step.update(loss_or_result, count_largest_part(parts))
        run.average_weights(result.device_finite)
    run.step_result = result
    run.local_samples += sum(part.samples for part in parts)
    is_whole = run.batch_parts.is_whole(run.batches.size(position[1]))
    batch_digest = batch_parts.digest_batch(run.step.state.sample_hashes, shared=not is_whole)
    records.add(TrainedStep(run.counters.step + 1, position, learning_rate, result, batch_digest))


def _roll_back(run: Run, saver: Saver, records: StepRecords, kind: str, reason: str, consequence: str = "") -> None:
    """Restore the last checkpoint, and record an event: `kind`, and a text of `reason` and `consequence`."""
    fault_point("roll back", run)
    # A save in the background may be writing the checkpoint to go back to.
    records.drop()
    saver.wait()
    # One process may have halved its micro-batches before the problem; all continue with the smallest size.
    run.step.use_micro_batch(agreement.find_smallest(run.ranks, run.step.micro_batch))
    loaded, damaged = rank_checkpoints.load_latest(run.ranks, run.checkpoints, run.model)
    assert loaded is not None, "a checkpoint is written before the first step"
    for line in damaged:
        run.events.add("storage", line)
    # The clock of this attempt goes on, and its seconds in the checkpoint would count twice.
    earlier_seconds = run.counters.seconds
    run_state.restore(run, loaded)
    run.counters.seconds = earlier_seconds
    if run.time_target:
        run.time_target.restart()
    assert run.metrics is not None
    run.metrics.remove_rows_after(run.counters.step, run_state.count_evaluated_epochs(run))
    run.events.add(kind, f"{reason}; back to {loaded.path.name}{consequence}", run.counters.step)


def _describe_skipped(run: Run) -> str:
    """A description of the batches that are skipped from now on."""
    return ", ".join(f"epoch {e + 1} batch {b + 1}" for e, b in sorted(run.numerics.skipped_batches)) or "none"


def record_evaluation(run: Run, saver: Saver, progress: Progress, confusion: dict[str, object]) -> None:
    """Record an evaluation, save the weights if they are the best so far, and end the epoch.

    Raises:
        NotFinite: if a weight that would be saved is not finite.
    """
    fault_point("record evaluation")
    counters = run.counters
    with run.signals.protect_section():
        best_before = run.best_metric.best.best
        is_best = run.best_metric.update(run.last_metrics, counters.step, counters.epoch)
        assert run.metrics is not None
        run.metrics.write(counters.step, counters.epoch, run.last_metrics)
        run.metrics.board.put(counters.step, confusion_image.draw_images(confusion))
        if is_best:
            saver.save_best({"metrics": run.last_metrics, "confusion": confusion})
        # Of two equal values the one with the lower loss is the best.
        is_tie = run.best_metric.best.best == best_before
        progress.report_evaluation(run, "" if not is_best else "best, by its loss" if is_tie else "best")
        # Before the save, so that a checkpoint at the end of this epoch resumes with the next one.
        counters.epoch, counters.batch = counters.epoch + 1, 0
        _keep_in_time(run, progress)
    if saver.is_due(epoch_ended=True):
        saver.save_periodically()
    reason = run.user_parts.callbacks.call(
        "on_epoch", collect_info(run, counters.epoch, metrics=dict(run.last_metrics), best=is_best)
    )
    run.stop_reason = run.stop_reason or reason


def _keep_in_time(run: Run, progress: Progress) -> None:
    """Make a run with `train.within` shorter or longer, if its epochs take another time than expected."""
    sizes = (run.clock.seconds, run.total_steps, run.batches.per_epoch)
    if run.time_target and (change := run.time_target.change_length(run.counters, *sizes)):
        unreached = [epoch + 1 for epoch in run.network.unfreezing.epochs if epoch >= run.total_epochs]
        missed = f"; model.unfreeze in epoch {unreached[0]} is no longer reached" if unreached else ""
        run.events.add("within", change + missed, run.counters.step)
        progress.change_length(run)


def _call_on_step(run: Run, records: StepRecords) -> None:
    """Call the callback `on_step`, if there is one; it waits for the result of the step."""
    result = run.step_result
    if result is None or run.user_parts.callbacks.on_step is None:
        return
    records.flush()
    learning_rate = float(run.optimizer.param_groups[0]["lr"])
    values = {"loss": result.loss, "lr": learning_rate, "grad_norm": result.grad_norm, "skipped": not result.finite}
    run.stop_reason = run.user_parts.callbacks.call("on_step", collect_info(run, run.counters.epoch + 1, **values))


def collect_info(run: Run, epoch: int, **values: Any) -> TrainingInfo:
    """The current state of the run, for a callback; `values` are further fields of `TrainingInfo`."""
    return TrainingInfo(run.folder, run.counters.step, run.total_steps, epoch, run.total_epochs, **values)
