"""The final test: the trained model on `data.test`, once, after every decision; like `drivetrain evaluate RUN --data`."""

from __future__ import annotations

from typing import Any

import torch

from runtime.data.dataset import mark_partial
from runtime.job.data import Data
from runtime.job.formatting import format_metric
from runtime.models import forward, saved_model
from runtime.system.console import say
from runtime.training import losses
from runtime.training.evaluation.metrics import MetricAccumulator
from runtime.training.run import Run


def result(run: Run) -> dict[str, Any]:
    """Metrics and confusion of the model that the run has written; empty without test data.

    The network is built anew from its folder and computes in fp32, as in `predict` and `evaluate`.
    """
    data = run.readable
    if data.test is None:
        return {}
    train, split = run.job.train, data.test.split
    network = saved_model.load(run.folder, consent=True).network
    heads = mark_partial(data.heads, [split.targets])
    goal = losses.objective(train.loss, heads, data.train.targets, train.class_weights, data.loss)
    tally = MetricAccumulator(data.heads, goal)
    for ids, outputs in forward.outputs(network, data.heads, split, data.test.prepare, run.device):
        index = torch.from_numpy(ids)
        tally.add(outputs, {name: y[index] for name, y in split.targets.items()})
    metrics = tally.metrics("test/")
    path = run.job.data.test if isinstance(run.job.data, Data) else run.job.task
    say(
        f"final test on {len(split):,} samples of {path}: {', '.join(f'{k} {format_metric(v)}' for k, v in metrics.items())}"
    )
    return {"data": path, "samples": len(split), "metrics": metrics, "confusion": tally.confusion()}
