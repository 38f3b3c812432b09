"""Evaluation: loss and metrics over all validation samples, each counted once."""

from __future__ import annotations

import contextlib
from typing import Any

import torch

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
    # Broken in the middle of a swap, the network would be neither.
    with run.signals.held(), weights, run.signals.released():
        return _evaluate(run)


@torch.inference_mode()
def _evaluate(run: Run) -> tuple[dict[str, float], dict[str, Any]]:
    tally = Tally(run.dataset.heads, run.step.objective)
    size = max(run.job.train.batch_size, min(256, 4 * run.job.train.batch_size))
    for batch in batches.in_order(run.dataset.validation, run.step.micro_batch or size, workers=run.batches.workers):
        ready = run.prepared(batch, None)
        tally.add(run.step.outputs(ready.inputs), ready.targets)
    return tally.metrics(), tally.confusion()
