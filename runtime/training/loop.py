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

from runtime.data.dataset import Batch
from runtime.distributed import batch_digest
from runtime.errors import Stopped
from runtime.system.signals import Interrupted
from runtime.tracking import confusion_image
from runtime.training import agreement, frozen_stage
from runtime.training.agreement import HalfUpdated
from runtime.training.callbacks import TrainingInfo
from runtime.training.checkpoints import resumed_checkpoint, run_state
from runtime.training.evaluation.validation import check_format, evaluate
from runtime.training.nonfinite import Fp16Collapse, NotFinite
from runtime.training.profiling.profiler import Profiler
from runtime.training.progress import Progress
from runtime.training.run import Run
from runtime.training.saver import Saver
from runtime.training.step_options import SeededPart, largest
from runtime.training.step_records import StepRecords, TrainedStep

ROLLED_BACK = (NotFinite, Fp16Collapse, HalfUpdated)
"""After these the same process goes on from the last checkpoint."""


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
    frozen_stage.enter(run)  # a run that was killed after its last epoch trains no more, but evaluates its weights
    records = StepRecords(run, progress)
    reason = _ended(run)
    while reason is None and run.counters.epoch < run.job.train.epochs:
        try:
            _epoch(run, saver, records, profiler)
            _tell_shards(run)
            with run.clock.phase("evaluate"):
                run.last, confusion = evaluate(run)
                check_format(run)
            agreement.settle(run.ranks, _met(_record_evaluation, run, saver, progress, confusion))
        except NotFinite as why:
            with run.signals.held():
                run.numerics.roll_back(why)
                _go_back(run, saver, records, "numbers", str(why), f", skipping batches: {_left_out(run)}")
        except Fp16Collapse as why:
            with run.signals.held():
                _go_back(run, saver, records, "precision", str(why), ", continuing in fp32 (train.fp16.fallback)")
                run.step.fall_back()
        except HalfUpdated as why:
            with run.signals.held():
                _go_back(run, saver, records, "memory", str(why))
        reason = _ended(run)
    epochs = run.job.train.epochs
    return reason or ("1 epoch trained" if epochs == 1 else f"all {epochs} epochs trained")


def _tell_shards(run: Run) -> None:
    """Say how many shards are fetched at the same time, and by what it was decided, when that has changed."""
    fetched = run.readable.fetched
    if fetched and fetched.width.news():
        run.events.add("shards", f"fetched ahead as far as the cache has space: {fetched.width.reason}")


def _ended(run: Run) -> str | None:
    """Why the training ends before its last epoch, or None; checked after an evaluation and at an epoch's start."""
    if run.counters.batch:
        return None
    if run.stop_reason is not None:
        return f"ended by {run.stop_reason}"
    return f"{run.counters.step} steps trained" if run.steps_done() else run.watch.stop()


def _epoch(run: Run, saver: Saver, records: StepRecords, profiler: Profiler | None) -> None:
    """Train an epoch from the present counters."""
    frozen_stage.enter(run)
    frozen_stage.announce(run)
    run.train_mode()
    batches = run.clock.waiting("input", run.batches.epoch(run.counters.epoch, run.counters.batch))
    try:
        _train(run, saver, records, profiler, batches)
    except ROLLED_BACK:
        batches.close()  # the traceback keeps them: their workers would live on beside those of the next try
        raise


def _train(run: Run, saver: Saver, records: StepRecords, profiler: Profiler | None, batches: Iterator[Batch]) -> None:
    """Train on some batches. A problem of one process is shared with all in the next step, or after the last one."""
    trouble: BaseException | None = None
    with run.clock.phase("train"):
        while _goes_on(run):
            batch, trouble = (None, trouble) if trouble else _fetched(run, batches)
            if batch is None and trouble is None:
                break
            if run.is_divided:  # nobody can stay away from a step, in which the others need its part of the weights
                _settle(run, records, trouble)
                saver.save_together(records.flush)
            trouble = _advance(run, batch, records, trouble)
            trouble = trouble or run.signals.pending() or _met(_profile_and_save, run, saver, records, profiler)
            trouble = trouble or _met(_call_after_step, run, records)
    _settle(run, records, trouble or run.signals.pending() or _met(records.flush) or _met(saver.check))
    saver.save_together(records.flush)


def _goes_on(run: Run) -> bool:
    """Whether another step follows in this epoch; the same in all processes, whatever one of them has met."""
    return not run.steps_done() and run.stop_reason is None and run.counters.batch < run.batches.per_epoch


def _settle(run: Run, records: StepRecords, trouble: BaseException | None) -> None:
    """Raise the problem that counts for all processes."""
    found = agreement.agreed(run.ranks, trouble)
    if found is not None:
        raise _recorded(records, found, trouble)


def _recorded(records: StepRecords, found: BaseException, own: BaseException | None) -> BaseException:
    """The problem to raise, once the step before it is recorded.

    Before a stop, which saves, the last step is recorded; what that finds comes first, and the stop is met again
    afterwards. It is recorded, too, if another process has met something in it: rank 0 records earlier when it saves,
    and all must skip the same batches.

    Args:
        found: what counts for all processes.
        own: what this process has met itself before the step.
    """
    if found is not own or isinstance(found, Stopped | Interrupted):
        return _met(records.flush) or found
    return found


def _fetched(run: Run, batches: Iterator[Batch]) -> tuple[Batch | None, BaseException | None]:
    """The next batch, None after the last; and the problem that prevents a step on it."""
    try:
        with run.signals.released():
            batch = next(batches, None)
    except KeyboardInterrupt as why:
        return None, why
    late = batch is not None and run.ranks.is_rank0 and run.time_left() <= 0
    return batch, Stopped(f"max_time of {run.job.train.max_time} has passed") if late else None


def _met(work: Callable[..., None], *given: object) -> Exception | None:
    """Call a function; return an error that requires a rollback, so that all processes can agree on it first."""
    try:
        work(*given)
    except ROLLED_BACK as why:
        return why
    return None


def _profile_and_save(run: Run, saver: Saver, records: StepRecords, profiler: Profiler | None) -> None:
    if profiler:
        profiler.step()
    if saver.due():
        records.flush()
        saver.periodic()


def _advance(
    run: Run, batch: Batch | None, records: StepRecords, trouble: BaseException | None = None
) -> BaseException | None:
    """Train one step on one batch; weights, counters and records are updated together or not at all.

    Args:
        run: whose step it is.
        batch: this process's shard.
        records: of the steps.
        trouble: what this process has met before the step.

    Returns:
        What requires a rollback, and the other processes do not know yet. They go on, so the counters do, too.

    Raises:
        BaseException: what one of the processes has met before the step or in its gradients, and counts for all.
    """
    counters, met = run.counters, None
    place, size = (counters.epoch, counters.batch), run.batches.size(counters.batch)
    run.outcome = None
    with run.signals.held():
        if place in run.numerics.skip:
            _settle(run, records, trouble)
        else:
            met = _step(run, batch, place, records, trouble)
        counters.step += 1
        counters.batch += 1
        counters.samples += size
    return met


def _step(
    run: Run, batch: Batch | None, place: tuple[int, int], records: StepRecords, trouble: BaseException | None
) -> BaseException | None:
    size, parts_of_batch = run.batches.size(place[1]), run.batch_parts
    run.step.state.samples = parts_of_batch.computed(size)
    run.step.state.share = 1.0 if parts_of_batch.is_whole(size) else 1 / run.ranks.count
    try:
        if trouble is not None:
            run.step.abstain(trouble)
        assert batch is not None, "who has no batch says why"
        ready = run.mixed(run.prepared(batch, place[0]))
        parts = run.own_parts(run.batches.size(place[1]))
        loss = run.step.computed(ready, parts)
    except (*ROLLED_BACK, Stopped, Interrupted) as found:
        raise _recorded(records, found, trouble) from None
    return _met(_update, run, place, records, loss, parts)


def _update(run: Run, place: tuple[int, int], records: StepRecords, loss: Tensor, parts: list[SeededPart]) -> None:
    rate = run.set_rate()
    result = run.outcome = run.step.update(loss, largest(parts))
    run.own_samples += sum(part.samples for part in parts)
    if run.ema:
        run.ema.update(run.model, result.device_finite)
    whole = run.batch_parts.is_whole(run.batches.size(place[1]))
    batch = batch_digest.digest(run.step.state.samples_of, shared=not whole)
    records.add(TrainedStep(run.counters.step + 1, place, rate, result, batch))


def _go_back(run: Run, saver: Saver, records: StepRecords, kind: str, why: str, rest: str = "") -> None:
    """Roll back to the last checkpoint."""
    records.drop()
    saver.wait()
    run.step.use_micro_batch(agreement.least(run.ranks, run.step.micro_batch))
    loaded, passed = resumed_checkpoint.latest(run.ranks, run.checkpoints, run.model)
    assert loaded is not None, "a checkpoint is written before the first step"
    for line in passed:
        run.events.add("storage", line)
    run_state.restore(run, loaded)
    assert run.metrics is not None
    run.metrics.cut(run.counters.step, run_state.evaluated_epochs(run))
    run.events.add(kind, f"{why}; back to {loaded.path.name}{rest}", run.counters.step)


def _left_out(run: Run) -> str:
    """A description of the batches that are skipped from now on."""
    return ", ".join(f"epoch {e + 1} batch {b + 1}" for e, b in sorted(run.numerics.skip)) or "none"


def _record_evaluation(run: Run, saver: Saver, progress: Progress, confusion: dict[str, object]) -> None:
    counters = run.counters
    with run.signals.held():
        before = run.watch.best.best
        best = run.watch.update(run.last, counters.step, counters.epoch)
        assert run.metrics is not None
        run.metrics.write(counters.step, counters.epoch, run.last)
        run.metrics.board.put(counters.step, confusion_image.pictures(confusion))
        if best:
            saver.best({"metrics": run.last, "confusion": confusion})
        equal = run.watch.best.best == before
        progress.evaluation(run, "" if not best else "best, by its loss" if equal else "best")
        counters.epoch, counters.batch = counters.epoch + 1, 0
    if saver.due(epoch_ended=True):
        saver.periodic()
    why = run.parts.callbacks.call("on_epoch", info(run, counters.epoch, metrics=dict(run.last), best=best))
    run.stop_reason = run.stop_reason or why


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
    """What a callback is told about this moment of the run."""
    return TrainingInfo(run.folder, run.counters.step, run.total_steps, epoch, run.job.train.epochs, **values)
