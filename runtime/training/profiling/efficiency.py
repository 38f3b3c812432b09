"""Efficiency: what a training computed in a second, beside what this machine computes in one large matrix product.

Counted are matrix products, convolutions and attention, as torch counts them: three times a forward pass, once for it and
twice for the backward pass. Recurrent layers that a library computes in one piece are not counted.
"""

from __future__ import annotations

import time

import torch
from torch.utils.flop_counter import FlopCounterMode

from runtime.data.loader.batches import in_order
from runtime.training.run import Run

SIDE = 1024
"""Rows and columns of the product: large enough for every kernel, milliseconds on a CPU."""
TIMES = 5
SAMPLES = 64
SHORT = 20.0
"""Seconds of a run that tells too little to measure anything beside it."""


def measured(run: Run) -> dict[str, float] | None:
    """Operations of a sample in training, and operations a second of the product in the run's precision.

    None where they would mean little: if a part of the network is frozen or kept, nothing is counted, or the run was
    too short.
    """
    if run.frozen or run.replaced is not None or run.clock.seconds < SHORT:
        return None
    try:
        operations = 3 * _forward(run)
        return {"operations": operations, "product": product(run.device, run.step.dtype)} if operations else None
    except Exception as error:
        # The run is done and its model is written; this is only a line of its report.
        run.events.add("report", f"the efficiency is not known: {error}", run.counters.step)
        return None


def _forward(run: Run) -> float:
    """Operations of a sample in a forward pass, the mean of a few."""
    batch = next(iter(in_order(run.dataset.validation, min(SAMPLES, run.job.train.batch))))
    run.model.eval()
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        run.step.plain(*run.prepared(batch, None).inputs)
    return float(counter.get_total_flops() / len(batch.ids))


def product(device: torch.device, dtype: torch.dtype | None) -> float:
    """Operations a second of a large matrix product, the best of a few."""
    left, right = (torch.randn(SIDE, SIDE, device=device).to(dtype or torch.float32) for _ in range(2))
    best = float("inf")
    for _ in range(TIMES + 1):
        start = time.perf_counter()
        (left @ right)[0, 0].item()  # waits for a GPU, too
        best = min(best, time.perf_counter() - start)
    return 2 * SIDE**3 / best
