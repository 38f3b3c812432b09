"""Tracks the metrics of evaluations: the best one, early stopping, and drops of a plateau schedule."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from drivetrain.data import class_balance
from drivetrain.data.dataset import Dataset
from drivetrain.job import Job
from drivetrain.job.job import SCALED_RMSE
from drivetrain.job.train import EarlyStopping, Plateau
from drivetrain.tracking.best_value import BestValue


def choose_metric(job: Job, dataset: Dataset) -> str:
    """Choose the metric of the best checkpoint: for several target columns the scaled RMSE, unless the job sets one."""
    several = any(len(head.columns) > 1 for head in dataset.heads.values())
    if several and not job.checkpoint.best and job.best() == "validation/rmse":
        return f"validation/{SCALED_RMSE}"
    return class_balance.choose_best_metric(job, dataset)


class BestMetric:
    """Keeps the best evaluation, and decides when training stops early and when a plateau schedule lowers the rate."""

    def __init__(self, best: str, stopping: EarlyStopping | None, schedule: Any) -> None:
        self.best = BestValue(best)
        self.stopping = BestValue(stopping.metric, stopping.min_delta) if stopping else None
        self.patience = stopping.patience if stopping else 0
        self.plateau = BestValue(schedule.metric) if isinstance(schedule, Plateau) else None
        self.schedule = schedule
        self.drops = 0

    def update(self, metrics: Mapping[str, float], step: int, epoch: int) -> bool:
        """Add an evaluation; returns whether it is the best so far."""
        if self.stopping:
            self.stopping.update(metrics.get(self.stopping.metric, math.nan), step, epoch)
        if self.plateau:
            self.plateau.update(metrics.get(self.plateau.metric, math.nan), step, epoch)
            if self.plateau.waited > self.schedule.patience:
                self.drops += 1
                self.plateau.waited = 0
        # The loss decides between equal values.
        return self.best.update(metrics.get(self.best.metric, math.nan), step, epoch, metrics.get("validation/loss"))

    def factor(self) -> float:
        """Return the factor of a plateau schedule on the learning rate."""
        return float(self.schedule.factor**self.drops) if self.plateau else 1.0

    def reason_to_stop(self) -> str | None:
        """Return the reason to stop early, or None."""
        watched = self.stopping
        if watched is None or watched.waited < self.patience:
            return None
        if watched.best is None:
            best = "never a number"
        else:
            best = f"best {watched.best:.4g} after epoch {watched.epoch + 1}"
        return f"{watched.metric} has not improved for {self.patience} evaluations ({best})"

    def state(self) -> dict[str, Any]:
        """Return the whole state as plain values."""
        return {
            "best": asdict(self.best),
            "stopping": asdict(self.stopping) if self.stopping else None,
            "plateau": asdict(self.plateau) if self.plateau else None,
            "drops": self.drops,
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore `state`; early stopping and plateaus start again if an extended run watches another metric."""
        self.best = BestValue(**state["best"])
        self.stopping = _restore_watched(self.stopping, state["stopping"])
        self.plateau = _restore_watched(self.plateau, state["plateau"])
        self.drops = state["drops"]


def _restore_watched(watched: BestValue | None, state: Mapping[str, Any] | None) -> BestValue | None:
    """Restore the history of a watched metric, unless another metric or threshold was watched."""
    if watched is None or state is None or (watched.metric, watched.min_delta) != (state["metric"], state["min_delta"]):
        return watched
    return BestValue(**state)
