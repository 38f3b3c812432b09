"""Evaluation: loss and metrics over all validation samples, each counted once, in fp32 as `evaluate` and `predict` compute."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeVar

import torch

from drivetrain.data.dataset import Batch, Split
from drivetrain.data.loader import batches
from drivetrain.distributed.ranks import Ranks
from drivetrain.models import forward
from drivetrain.system import torch_errors
from drivetrain.training import agreement
from drivetrain.training.evaluation.metrics import MetricAccumulator
from drivetrain.training.run import Run

Result = TypeVar("Result")

FORMAT_GAP = 0.05
"""Relative difference of the loss from fp32 from which on a shorter format is left: the tuner allows as much."""
LEAST_OF_CLASSES = 0.1
"""A loss of classes below this is that of answers which are nearly sure: its rounding changes none of them."""
FORMAT_BATCHES = 4
"""Validation batches of each process over which it is looked at."""


def evaluate(run: Run) -> tuple[dict[str, float], dict[str, object]]:
    """Evaluate the run's network (its EMA, if there is one) on the validation data.

    Returns:
        The metrics by name, and per head with classes the confusion matrix (truth by row).
    """
    weights = run.ema.swap_in(run.model) if run.ema else contextlib.nullcontext()
    run.model.eval()
    # A signal must not interrupt the swap of the averaged weights. Buffers are restored, whatever the network does.
    with run.signals.held(), weights, run.step.buffers.keep_unchanged():
        tally = _count(run)
    with torch.inference_mode():
        tally.add_up(run.ranks.all_reduce_sum, (run.ranks.number, run.ranks.count))
    metrics = tally.metrics() | run.parts.metrics.values()
    # All processes use rank 0's numbers, so that all make the same decisions.
    return dict(zip(metrics, run.ranks.copy_from_rank0(list(metrics.values())), strict=True)), tally.confusion()


def check_format(run: Run) -> None:
    """Go back to fp32 if the shorter format of the training changes the loss of the trained network.

    The first steps say little: rounding hurts a network that has learned details. So the loss of a few validation batches
    is compared after epochs 1, 2, 4, 8, ...; a format that the job asks for stays, and the gap is said.
    """
    epoch, row = run.counters.epoch, run.plan.row("precision")
    if run.step.dtype is None or run.is_divided or epoch & (epoch - 1):
        return
    losses, exact = _losses(run)
    classes = all(head.classes for head in run.dataset.heads.values())
    gap = abs(losses - exact) / max(abs(exact), LEAST_OF_CLASSES if classes else 1e-6)
    if gap <= FORMAT_GAP:
        return
    is_requested = row.source == "job"
    run.events.add(
        "precision",
        f"after epoch {epoch} the loss in {row.value} is {losses:.4g}, in fp32 {exact:.4g}, {gap:.0%} apart: "
        + ("kept, as set in the job" if is_requested else "continuing in fp32"),
        run.counters.step,
    )
    if not is_requested:
        run.step.fall_back()


def _losses(run: Run) -> tuple[float, float]:
    """The loss of the first validation batches of each process, in the format of the training and in fp32."""
    tallies = [MetricAccumulator(run.dataset.heads, run.step.objective) for _ in range(2)]
    size = run.step.micro_batch or usual_size(run)
    run.model.eval()
    with forward.without_gradients(run.model), run.signals.held(), run.step.buffers.keep_unchanged():
        for batch, _ in itertools.islice(micro_batches(run, run.dataset.validation, size), FORMAT_BATCHES):
            for tally, outputs in zip(tallies, (run.step.outputs, run.step.outputs_in_fp32), strict=True):
                tally.add(outputs(batch.inputs), batch.targets, batch.ids)
        for tally in tallies:
            tally.add_up(run.ranks.all_reduce_sum, (run.ranks.number, run.ranks.count))
    losses, exact = run.ranks.copy_from_rank0([tally.metrics()["validation/loss"] for tally in tallies])
    return losses, exact


def usual_size(run: Run) -> int:
    """Samples per evaluation batch if training batches are not split; larger, since no activations are saved."""
    usual = run.job.train.batch
    return max(usual, min(256, 4 * usual))


def _count(run: Run) -> MetricAccumulator:
    """The counts of all processes, after each has evaluated its shard of the samples."""
    # An interrupted process would leave the others waiting for its part of divided weights.
    released = contextlib.nullcontext if run.is_divided else run.signals.released
    try:
        with released():
            tally, problem = with_smaller_batches(run, "the evaluation", partial(_evaluate, run)), None
    except KeyboardInterrupt as interrupt:
        tally, problem = None, interrupt
    agreement.settle(run.ranks, problem)
    assert tally is not None, "who has not counted says why"
    return tally


def with_smaller_batches(run: Run, purpose: str, compute: Callable[[int], Result]) -> Result:
    """Compute in batches of the usual size; if memory runs out, start over with half as many samples per batch."""
    size = run.step.micro_batch or usual_size(run)
    while True:
        try:
            return compute(size)
        except (MemoryError, RuntimeError) as error:
            if not torch_errors.is_out_of_memory(error):
                raise
            if run.is_divided:
                raise agreement.out_of_memory(run.ranks, size) from None
            if size == 1:
                raise torch_errors.out_of_memory_error(error) from None
        run.step.options.report_memory(f"out of memory in {purpose} with batches of {size}; retrying with {size // 2}")
        size //= 2


def _evaluate(run: Run, size: int) -> MetricAccumulator:
    tally = MetricAccumulator(run.dataset.heads, run.step.objective)
    run.parts.metrics.begin()
    # What is gathered of divided weights under inference_mode could not be trained on afterwards.
    free = torch.no_grad() if run.is_divided else forward.without_gradients(run.model)
    with free, run.ranks.raising_peer_errors():
        for micro_batch, counts in micro_batches(run, run.dataset.validation, size):
            outputs = run.step.outputs_in_fp32(micro_batch.inputs)
            if counts:
                tally.add(outputs, micro_batch.targets, micro_batch.ids)
                run.parts.metrics.add(outputs, micro_batch.targets, run.dataset.heads)
    return tally


def micro_batches(run: Run, split: Split, size: int) -> Iterator[tuple[Batch, bool]]:
    """The batches of a split that this process computes, on the device and not augmented, and whether they count."""
    settings = run.batches
    share = (run.ranks.number, run.ranks.count)
    local_batches = batches.in_order(
        split, size, workers=settings.workers_for(split, size), pin=settings.pin, report=settings.tell, share=share
    )
    cut = (part for batch in local_batches for part in run.step.micro_batches(run.preprocess(batch, None)))
    if not run.is_divided:
        return ((micro_batch, True) for micro_batch in cut)
    return batches_together(run.ranks, cut, lambda: run.preprocess(next(iter(batches.in_order(split, 1))), None))


def batches_together(
    ranks: Ranks, local_batches: Iterator[Batch], spare: Callable[[], Batch]
) -> Iterator[tuple[Batch, bool]]:
    """The batches of this process, and others that count nothing until all processes have computed theirs.

    Args:
        ranks: the processes, which call this together.
        local_batches: the batches of this one.
        spare: a batch for the others' sake.

    Returns:
        Batches, and whether they count.

    Raises:
        PeerError: if another process is gone.
    """
    while True:
        batch = next(local_batches, None)
        if not any(row[0] for row in ranks.all_gather([float(batch is not None)])):
            return
        yield (batch, True) if batch is not None else (spare(), False)
