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
from drivetrain.training.evaluation.validation import check_format, evaluate
from drivetrain.training.nonfinite import Fp16Collapse, NotFinite
from drivetrain.training.profiling import Profiler
from drivetrain.training.progress import Progress
from drivetrain.training.run import Run
from drivetrain.training.saver import Saver
from drivetrain.training.step_options import SeededPart, largest
from drivetrain.training.step_records import StepRecords, TrainedStep
from drivetrain.training.step_result import StepResult
from drivetrain.training.user_parts import TrainingInfo

ROLLED_BACK = (NotFinite, Fp16Collapse, HalfUpdated)
"""After these the same process continues from the last checkpoint."""


def fit(run: Run, saver: Saver, progress: Progress, profiler: Profiler | None = None) -> str:
    """Train until the end.

    Returns:
        Why the training ended.

    Raises:
        Stopped: if `max_time` is spent.
        Interrupted: on a signal.
        NumericsError: if numbers are not finite for the second time.
    """
    # With several processes a signal may interrupt only where all of them learn about it.
    with run.signals.held() if run.ranks.count > 1 else contextlib.nullcontext():
        return _fit(run, saver, progress, profiler)


def _fit(run: Run, saver: Saver, progress: Progress, profiler: Profiler | None) -> str:
    # A run that was killed after its last epoch trains no more, but evaluates its weights.
    trained_layers.enter_stage(run)
    records = StepRecords(run, progress)
    reason = _reason_to_end(run)
    while reason is None and run.counters.epoch < run.job.train.epochs:
        try:
            _epoch(run, saver, records, profiler)
            _report_shards(run)
            with run.clock.phase("evaluate"):
                run.last, confusion = evaluate(run)
                check_format(run)
            agreement.settle(run.ranks, _catch_rollback(record_evaluation, run, saver, progress, confusion))
        # A signal in the middle of a rollback would leave weights and counters of two different steps.
        except NotFinite as problem:
            with run.signals.held():
                run.numerics.roll_back(problem)
                _go_back(run, saver, records, "numbers", str(problem), f", skipping batches: {_describe_skipped(run)}")
        except Fp16Collapse as problem:
            with run.signals.held():
                _go_back(run, saver, records, "precision", str(problem), ", continuing in fp32 (train.fp16.fallback)")
                run.step.fall_back()
        except HalfUpdated as problem:
            with run.signals.held():
                _go_back(run, saver, records, "memory", str(problem))
        reason = _reason_to_end(run)
    fault_point("trained", run)
    epochs = run.job.train.epochs
    return reason or ("1 epoch trained" if epochs == 1 else f"all {epochs} epochs trained")


def _report_shards(run: Run) -> None:
    """Record how many shards are fetched at the same time, and why, when that has changed."""
    fetched = run.readable.fetched
    if fetched and fetched.width.take_news():
        run.events.add("shards", f"fetched ahead as far as the cache has space: {fetched.width.reason}")


def _reason_to_end(run: Run) -> str | None:
    """Why the training ends before its last epoch, or None; checked after an evaluation and at an epoch's start."""
    if run.counters.batch:
        return None
    if run.stop_reason is not None:
        return f"ended by {run.stop_reason}"
    if run.counters.solved and run.ends_solved:
        return "the heads are solved"
    return f"{run.counters.step} steps trained" if run.steps_done() else run.watch.stop()


def _epoch(run: Run, saver: Saver, records: StepRecords, profiler: Profiler | None) -> None:
    """Train an epoch from the present counters."""
    trained_layers.enter_stage(run)
    trained_layers.announce_stage(run)
    if run.solves_heads:
        solved_heads.solve(run)
        return
    run.train_mode()
    batches = run.clock.waiting("input", run.batches.epoch(run.counters.epoch, run.counters.batch))
    try:
        _train(run, saver, records, profiler, batches)
    except ROLLED_BACK:
        # The traceback keeps the batches: their workers would live on beside those of the next try.
        batches.close()
        raise


def _train(run: Run, saver: Saver, records: StepRecords, profiler: Profiler | None, batches: Iterator[Batch]) -> None:
    """Train on the batches of an epoch.

    A problem of this process alone is not raised at once: the other processes would wait for its part of the next sum.
    It is passed to that step, or to `_raise_agreed` after the last one, where all processes raise the same error.
    """
    problem: BaseException | None = None
    with run.clock.phase("train"):
        while _has_next_step(run):
            batch, problem = (None, problem) if problem else _fetch(run, batches)
            if batch is None and problem is None:
                break
            if run.is_divided:
                # No process can stay away from a step: the others need its part of the weights.
                _raise_agreed(run, records, problem)
                saver.save_together(records.flush)
            problem = _advance(run, batch, records, problem)
            # The first problem counts; what comes after it would save or report a step that is going to be undone.
            problem = (
                problem or run.signals.pending() or _catch_rollback(_profile_and_save, run, saver, records, profiler)
            )
            problem = problem or _catch_rollback(_call_after_step, run, records)
    _raise_agreed(
        run, records, problem or run.signals.pending() or _catch_rollback(records.flush) or _catch_rollback(saver.check)
    )
    saver.save_together(records.flush)


def _has_next_step(run: Run) -> bool:
    """Whether another step follows in this epoch; the same in all processes, whatever problem one of them has."""
    return not run.steps_done() and run.stop_reason is None and run.counters.batch < run.batches.per_epoch


def _raise_agreed(run: Run, records: StepRecords, problem: BaseException | None) -> None:
    """Agree with the other processes, and raise the most serious problem; return if no process has one."""
    agreed_problem = agreement.agree_on(run.ranks, problem)
    if agreed_problem is not None:
        raise _record_before_raising(records, agreed_problem, problem)


def _record_before_raising(
    records: StepRecords, agreed_problem: BaseException, local_problem: BaseException | None
) -> BaseException:
    """Record the last step if necessary; returns the problem to raise.

    Args:
        agreed_problem: the one that counts for all processes.
        local_problem: the one that this process had before the step.
    """
    # A stop saves a checkpoint, so the step before it needs its row. A problem of another process: rank 0 may already
    # have recorded the row when it saved, and all must skip the same batches.
    if agreed_problem is not local_problem or isinstance(agreed_problem, Stopped | Interrupted):
        # A NaN found while recording wins over a stop: the run must go back first, and is stopped afterwards.
        return _catch_rollback(records.flush) or agreed_problem
    return agreed_problem


def _fetch(run: Run, batches: Iterator[Batch]) -> tuple[Batch | None, BaseException | None]:
    """Fetch the next batch, None after the last; returns it with the problem that prevents a step on it."""
    try:
        with run.signals.released():
            batch = next(batches, None)
    except KeyboardInterrupt as interrupt:
        return None, interrupt
    is_over = batch is not None and run.ranks.is_rank0 and run.time_left() <= 0
    return batch, Stopped(f"max_time of {run.job.train.max_time} has passed") if is_over else None


def _catch_rollback(work: Callable[..., None], *arguments: object) -> Exception | None:
    """Call a function; returns the error that requires a rollback, so that all processes can agree on it first."""
    try:
        work(*arguments)
    except ROLLED_BACK as problem:
        return problem
    return None


def _profile_and_save(run: Run, saver: Saver, records: StepRecords, profiler: Profiler | None) -> None:
    if profiler:
        profiler.step()
    if saver.due():
        records.flush()
        saver.periodic()


def _advance(
    run: Run, batch: Batch | None, records: StepRecords, problem: BaseException | None = None
) -> BaseException | None:
    """Train one step on one batch; weights, counters and records are updated together or not at all.

    Args:
        run: whose step it is.
        batch: this process's shard.
        records: of the steps.
        problem: one that this process had before the step.

    Returns:
        A problem found after the gradients were summed, which the other processes do not know yet.

    Raises:
        BaseException: the problem of one process, before the step or in its gradients, that counts for all.
    """
    fault_point("batch", run, batch)
    counters, late_problem = run.counters, None
    position, size = (counters.epoch, counters.batch), run.batches.size(counters.batch)
    run.outcome = None
    with run.signals.held():
        if position in run.numerics.skip:
            _raise_agreed(run, records, problem)
        else:
            late_problem = _step(run, batch, position, records, problem)
        # Also after a late problem: the other processes have trained this step, and learn of it in the next.
        counters.step += 1
        counters.batch += 1
        counters.samples += size
    return late_problem


def _step(
    run: Run, batch: Batch | None, position: tuple[int, int], records: StepRecords, problem: BaseException | None
) -> BaseException | None:
    """Compute the gradients of a batch and update with them; returns and raises as `_advance`."""
    fault_point("step", run)
    size, parts_of_batch = run.batches.size(position[1]), run.batch_parts
    run.step.state.samples = parts_of_batch.count_computed(size)
    run.step.state.share = 1.0 if parts_of_batch.is_whole(size) else 1 / run.ranks.count
    try:
        if problem is not None:
            # The others are in their sums already: this process sends zeros and its problem, which all then raise.
            run.step.abstain(problem)
        assert batch is not None, "a process without a batch has a problem"
        ready = run.mix(run.preprocess(batch, position[0]))
        parts = run.own_parts(size)
        rate = run.set_rate()
        computed = run.step.replay(ready, parts) or run.step.compute_gradients(ready, parts)
    except (*ROLLED_BACK, Stopped, Interrupted) as agreed_problem:
        raise _record_before_raising(records, agreed_problem, problem) from None
    return _catch_rollback(_update, run, position, records, rate, computed, parts)


def _update(
    run: Run,
    position: tuple[int, int],
    records: StepRecords,
    rate: float,
    computed: Tensor | StepResult,
    parts: list[SeededPart],
) -> None:
    """Update with the gradients of a computed loss, unless a replayed step has done that, and record the step."""
    replayed = isinstance(computed, StepResult)
    result = computed if isinstance(computed, StepResult) else run.step.update(computed, largest(parts))
    run.outcome = result
    run.own_samples += sum(part.samples for part in parts)
    # A recorded step updates the average of the weights itself.
    if not replayed:
        run.average_weights(result.device_finite)
    is_whole = run.batch_parts.is_whole(run.batches.size(position[1]))
    batch = batch_parts.digest_batch(run.step.state.samples_of, shared=not is_whole)
    records.add(TrainedStep(run.counters.step + 1, position, rate, result, batch))


def _go_back(run: Run, saver: Saver, records: StepRecords, kind: str, reason: str, consequence: str = "") -> None:
    """Roll back to the last checkpoint, and record an event."""
    fault_point("roll back", run)
    # The last step is undone, and a save in the background may be writing the checkpoint to go back to.
    records.drop()
    saver.wait()
    # One process may have halved its micro-batches before the problem.
    run.step.use_micro_batch(agreement.least(run.ranks, run.step.micro_batch))
    loaded, passed = rank_checkpoints.latest(run.ranks, run.checkpoints, run.model)
    assert loaded is not None, "a checkpoint is written before the first step"
    for line in passed:
        run.events.add("storage", line)
    run_state.restore(run, loaded)
    assert run.metrics is not None
    run.metrics.cut(run.counters.step, run_state.count_evaluated_epochs(run))
    run.events.add(kind, f"{reason}; back to {loaded.path.name}{consequence}", run.counters.step)


def _describe_skipped(run: Run) -> str:
    """A description of the batches that are skipped from now on."""
    return ", ".join(f"epoch {e + 1} batch {b + 1}" for e, b in sorted(run.numerics.skip)) or "none"


def record_evaluation(run: Run, saver: Saver, progress: Progress, confusion: dict[str, object]) -> None:
    """Record an evaluation, save what is the best so far, and end the epoch.

    Raises:
        NotFinite: if a weight that would be saved is not finite.
    """
    fault_point("record evaluation")
    counters = run.counters
    with run.signals.held():
        best_before = run.watch.best.best
        best = run.watch.update(run.last, counters.step, counters.epoch)
        assert run.metrics is not None
        run.metrics.write(counters.step, counters.epoch, run.last)
        run.metrics.board.put(counters.step, confusion_image.pictures(confusion))
        if best:
            saver.best({"metrics": run.last, "confusion": confusion})
        # Of two equal values the one with the lower loss is better.
        equal = run.watch.best.best == best_before
        progress.evaluation(run, "" if not best else "best, by its loss" if equal else "best")
        # Now, so that a checkpoint of this epoch's end resumes with the next epoch.
        counters.epoch, counters.batch = counters.epoch + 1, 0
    if saver.due(epoch_ended=True):
        saver.periodic()
    reason = run.parts.callbacks.call("on_epoch", info(run, counters.epoch, metrics=dict(run.last), best=best))
    run.stop_reason = run.stop_reason or reason


def _call_after_step(run: Run, records: StepRecords) -> None:
    """Call `on_step`, which needs the result of the step and waits for it."""
    result = run.outcome
    if result is None or run.parts.callbacks.on_step is None:
        return
    records.flush()
    rate = float(run.optimizer.param_groups[0]["lr"])
    values = {"loss": result.loss, "lr": rate, "grad_norm": result.grad_norm, "skipped": not result.finite}
    run.stop_reason = run.parts.callbacks.call("on_step", info(run, run.counters.epoch + 1, **values))


def info(run: Run, epoch: int, **values: Any) -> TrainingInfo:
    """The state of the run at this moment, for a callback."""
    return TrainingInfo(run.folder, run.counters.step, run.total_steps, epoch, run.job.train.epochs, **values)
