"""Efficiency: FLOP/s of the training, relative to those of one large matrix product on this machine.

Matrix products, convolutions and attention are counted with torch's FLOP counter: three times a forward pass, once for
forward and twice for backward. Recurrent layers in a single library call are not counted.
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
"""Seconds; shorter runs are not representative enough to be compared."""


def measured(run: Run) -> dict[str, float] | None:
    """FLOPs per training sample, and FLOP/s of the product in the run's precision.

    None if they would mean little: part of the network is frozen or cached, no FLOPs were counted, or the run was too
    short; or if this process alone cannot compute the network.
    """
    if (
        run.is_divided
        or run.frozen
        or run.network.unfreezing.first
        or run.replaced is not None
        or run.clock.seconds < SHORT
    ):
        return None
    try:
        operations = 3 * _forward(run)
        return {"operations": operations, "product": product(run.device, run.step.dtype)} if operations else None
    except Exception as error:
        # The run is done and its model is written; only a line of the report is missing.
        run.events.add("report", f"the efficiency could not be measured: {error}", run.counters.step)
        return None


def _forward(run: Run) -> float:
    """FLOPs per sample of a forward pass, averaged over a few."""
    batch = next(iter(in_order(run.dataset.validation, min(SAMPLES, run.job.train.batch))))
    run.model.eval()
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        run.step.options.forward(*run.prepared(batch, None).inputs)
    return float(counter.get_total_flops() / len(batch.ids))


def product(device: torch.device, dtype: torch.dtype | None) -> float:
    """FLOP/s of a large matrix product, the best of a few."""
    left, right = (torch.randn(SIDE, SIDE, device=device).to(dtype or torch.float32) for _ in range(2))
    best = float("inf")
    for _ in range(TIMES + 1):
        start = time.perf_counter()
        (left @ right)[0, 0].item()  # also waits for a GPU
        best = min(best, time.perf_counter() - start)
    return 2 * SIDE**3 / best
