"""Evaluation: loss and metrics over all validation samples, each counted once."""

from __future__ import annotations

import contextlib
from typing import Any

import torch

from runtime import memory
from runtime.data import batches
from runtime.run import Run
from runtime.tally import Tally


def evaluate(run: Run) -> tuple[dict[str, float], dict[str, Any]]:
    """Evaluate the run's network (its average, if it keeps one) on the validation data.

    Returns:
        The metrics by name, and per head with classes the confusion matrix (truth by row).
    """
    weights = run.ema.swapped_in(run.model) if run.ema else contextlib.nullcontext()
    run.model.eval()
    # Broken in the middle of a swap, the network would be neither. Evaluating changes nothing of it, whatever it does.
    with run.signals.held(), weights, run.step.buffers.unchanged(), run.signals.released():
        return _fitting(run)


def usual_size(run: Run) -> int:
    """How many samples are evaluated at a time where the batch is not split: no activations are kept."""
    usual = run.job.train.batch
    return max(usual, min(256, 4 * usual))


def _fitting(run: Run) -> tuple[dict[str, float], dict[str, Any]]:
    """Evaluate; if memory runs out, all of it again with half as many samples at a time."""
    size = run.step.micro_batch or usual_size(run)
    while True:
        try:
            return _evaluate(run, size)
        except (MemoryError, RuntimeError) as error:
            if not memory.is_exhausted(error):
                raise
            if size == 1:
                raise memory.one_sample(error) from None
        run.step.tell(f"memory ran out in the evaluation with {size} samples at a time; again with {size // 2}")
        size //= 2


@torch.inference_mode()
def _evaluate(run: Run, size: int) -> tuple[dict[str, float], dict[str, Any]]:
    tally = Tally(run.dataset.heads, run.step.objective)
    given = run.batches
    share = (run.ranks.number, run.ranks.count)
    for batch in batches.in_order(run.dataset.validation, size, workers=given.workers, pin=given.pin, tell=given.tell,
                                  share=share):  # fmt: skip
        for part in run.step.parts(run.prepared(batch, None)):
            tally.add(run.step.outputs(part.inputs), part.targets, part.ids)
    tally.add_up(run.ranks.total, share)
    return tally.metrics(), tally.confusion()
