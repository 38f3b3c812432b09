"""Evaluation: loss and metrics over all validation samples, each counted once."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import torch

from runtime.data import batches
from runtime.losses import Objective
from runtime.run import Run
from runtime.scores import ClassScores, scores


def evaluate(run: Run) -> tuple[dict[str, float], dict[str, Any]]:
    """Evaluate the run's network (its average, if it keeps one) on the validation data.

    Returns:
        The metrics by name, and per head with classes the confusion matrix (truth by row).
    """
    weights = run.ema.swapped_in(run.model) if run.ema else contextlib.nullcontext()
    run.model.eval()
    with weights, torch.inference_mode():
        return _evaluate(run)


@torch.inference_mode()
def _evaluate(run: Run) -> tuple[dict[str, float], dict[str, Any]]:
    heads, objective = run.dataset.heads, run.step.objective
    kept = {name: scores(head) for name, head in heads.items()}
    sums = {name: torch.zeros(2, dtype=torch.float64) for name in heads}
    size = max(run.job.train.batch_size, min(256, 4 * run.job.train.batch_size))
    for batch in batches.in_order(run.dataset.validation, run.step.micro_batch or size, workers=run.batches.workers):
        run.signals.check()
        ready = run.prepared(batch, None)
        outputs = run.step.outputs(ready.inputs)
        for name in heads:
            raw = (outputs[name] if isinstance(outputs, Mapping) else outputs).float()
            kept[name].update(raw, ready.targets[name])
            sums[name] += _loss_sums(objective, name, raw, ready.targets[name])
    metrics, total = {}, 0.0
    for name, head in heads.items():
        start = f"validation/{name}/" if name else "validation/"
        loss = float(sums[name][0] / sums[name][1])
        total += head.weight * loss
        metrics.update({f"{start}loss": loss, **{start + k: v for k, v in kept[name].compute().items()}})
    confusion = {name: {"classes": list(heads[name].classes), "matrix": score.matrix.tolist()}
                 for name, score in kept.items() if isinstance(score, ClassScores)}  # fmt: skip
    return {"validation/loss": total, **metrics} if "" not in heads else metrics, confusion


def _loss_sums(objective: Objective, name: str, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    loss = objective.losses[name]
    weights = loss.weights(targets)
    return torch.stack([(loss.terms(outputs, targets) * weights).sum(), weights.sum()]).double().cpu()
