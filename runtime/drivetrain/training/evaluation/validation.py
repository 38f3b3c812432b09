"""Evaluates a run on all validation samples, each counted once, in fp32 as `evaluate` and `predict` compute."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeVar

import torch

from drivetrain.data.dataset import Batch, Split
from drivetrain.data.loader import batches
from drivetrain.models import forward
from drivetrain.system import torch_errors
from drivetrain.training import batch_inputs
from drivetrain.training.evaluation.metrics import MetricAccumulator
from drivetrain.training.run import Run

Result = TypeVar("Result")

MAX_FORMAT_GAP = 0.05
"""Largest relative difference of the loss from fp32 for keeping a shorter format, as in the tuner."""
MIN_CLASS_LOSS = 0.1
"""Lower bound of a classification loss in comparisons: below it predictions are so sure that rounding changes none."""
FORMAT_BATCHES = 4
"""Validation batches of each process for comparing the formats."""


def evaluate(run: Run) -> tuple[dict[str, float], dict[str, object]]:
    """Evaluate the run's network (its EMA, if there is one) on the validation data.

    Returns:
        The metrics by name, and the details by head, as in `MetricAccumulator.confusion`.
    """
    averaged_weights = run.ema.swap_in(run.model) if run.ema else contextlib.nullcontext()
    run.model.eval()
    # A signal must not interrupt the swap of the averaged weights. Buffers are restored for any network.
    with (
        run.signals.protect_section(),
        averaged_weights,
        run.step.updater.buffers.keep_unchanged(),
        run.lockstep.raising_together(),
        run.signals.allow_interruption(),
    ):
        accumulator = with_smaller_batches(run, "the evaluation", partial(_evaluate_in_batches, run))
    with torch.inference_mode():
        accumulator.sum_over_processes(run.ranks)
    metrics = accumulator.metrics() | run.user_parts.metrics.compute()
    # All processes use rank 0's numbers to make the same decisions.
    confusion = accumulator.confusion(run.best_metric.best.metric)
    return dict(zip(metrics, run.ranks.all_gather(list(metrics.values()))[0], strict=True)), confusion


def check_precision(run: Run) -> None:
    """Fall back to fp32 if the shorter format of the training changes the loss of the trained network.

    Rounding hurts only a network that has learned details, so the loss of a few validation batches is compared after
    epochs 1, 2, 4, 8, ... A format that the job sets is kept, and the difference is only recorded.
    """
    epoch, row = run.counters.epoch, run.plan.decision("precision")
    if run.step.forward.dtype is None or epoch & (epoch - 1):
        return
    loss, fp32_loss = _measure_losses(run)
    classes = all(head.classes for head in run.dataset.heads.values())
    gap = abs(loss - fp32_loss) / max(abs(fp32_loss), MIN_CLASS_LOSS if classes else 1e-6)
    if gap <= MAX_FORMAT_GAP:
        return
    is_requested = row.source == "job"
    run.events.add(
        "precision",
        f"after epoch {epoch} the loss in {row.value} is {loss:.4g}, in fp32 {fp32_loss:.4g}, {gap:.0%} apart: "
        + ("kept, as set in the job" if is_requested else "continuing in fp32"),
        run.counters.step,
    )
    if not is_requested:
        run.step.fall_back_to_fp32()


def _measure_losses(run: Run) -> tuple[float, float]:
    """Measure the loss of the first validation batches of each process, in the training's format and in fp32."""
    accumulators = [MetricAccumulator(run.dataset.heads, run.objective) for _ in range(2)]
    batch_size = run.step.forward.micro_batch or default_batch_size(run)
    run.model.eval()
    with forward.without_gradients(run.model), run.signals.protect_section(), run.step.updater.buffers.keep_unchanged():
        for batch in itertools.islice(micro_batches(run, run.dataset.validation, batch_size), FORMAT_BATCHES):
            accumulators[0].add(run.step.forward.outputs(batch.inputs), batch.targets, batch.ids)
            accumulators[1].add(run.step.forward.outputs_in_fp32(batch.inputs), batch.targets, batch.ids)
        for accumulator in accumulators:
            accumulator.sum_over_processes(run.ranks)
    losses = [accumulator.metrics()["validation/loss"] for accumulator in accumulators]
    loss, fp32_loss = run.ranks.all_gather(losses)[0]
    return loss, fp32_loss


def default_batch_size(run: Run) -> int:
    """Return the usual number of samples per evaluation batch: more than in training, as no activations are saved."""
    training_batch = run.job.train.batch
    return max(training_batch, min(256, 4 * training_batch))


def with_smaller_batches(run: Run, purpose: str, compute: Callable[[int], Result]) -> Result:
    """Compute in batches of the usual size; if memory runs out, start again with half as many samples per batch."""
    size = run.step.forward.micro_batch or default_batch_size(run)
    while True:
        try:
            return compute(size)
        except (MemoryError, RuntimeError) as error:
            if not torch_errors.is_out_of_memory(error):
                raise
            if size == 1:
                raise torch_errors.out_of_memory_error(error) from None
        run.step.report("memory", f"out of memory in {purpose} with batches of {size}; retrying with {size // 2}")
        size //= 2


def _evaluate_in_batches(run: Run, batch_size: int) -> MetricAccumulator:
    accumulator = MetricAccumulator(run.dataset.heads, run.objective)
    run.user_parts.metrics.begin()
    with forward.without_gradients(run.model):
        for micro_batch in micro_batches(run, run.dataset.validation, batch_size):
            outputs = run.step.forward.outputs_in_fp32(micro_batch.inputs)
            accumulator.add(outputs, micro_batch.targets, micro_batch.ids)
            run.user_parts.metrics.add(outputs, micro_batch.targets, run.dataset.heads)
    return accumulator


def micro_batches(run: Run, split: Split, size: int) -> Iterator[Batch]:
    """Yield the preprocessed micro-batches of this process's shard of a split, without augmentation."""
    settings = run.batches
    local_batches = batches.fetch_in_order(
        split,
        size,
        workers=settings.workers_for(split, size),
        pin=settings.pin,
        report=settings.report,
        shard=(run.ranks.rank, run.ranks.world_size),
    )
    for batch in local_batches:
        yield from run.step.forward.split(batch_inputs.preprocess(run, batch, None))
