"""Tracks metrics: the best evaluation, early stopping, and drops of a plateau schedule."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from runtime.job import lower_is_better
from runtime.job.train import EarlyStopping, Plateau


@dataclass
class BestValue:
    """The best value of one metric, and the number of evaluations since."""

    metric: str
    min_delta: float = 0.0
    best: float | None = None
    step: int = 0
    epoch: int = 0
    waited: int = 0
    loss: float | None = None
    """The loss of the best evaluation, if it decides between equal values."""

    def update(self, value: float, step: int, epoch: int, loss: float | None = None) -> bool:
        """Add an evaluation; returns whether it is the best so far, which NaN never is.

        Of two equal values the one with the lower `loss` is better: on few samples an accuracy is soon as high as it
        gets, while the network still improves.
        """
        sign = -1 if lower_is_better(self.metric) else 1
        improved = value == value and (self.best is None or sign * (value - self.best) > self.min_delta)
        if value == self.best and loss is not None and self.loss is not None:
            improved = loss < self.loss
        if improved:
            self.best, self.step, self.epoch, self.waited, self.loss = value, step, epoch, 0, loss
        else:
            self.waited += 1
        return improved


class BestMetric:
    """All decisions that depend on the course of metrics."""

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
            self.stopping.update(metrics[self.stopping.metric], step, epoch)
        if self.plateau:
            self.plateau.update(metrics[self.plateau.metric], step, epoch)
            if self.plateau.waited > self.schedule.patience:
                self.drops += 1
                self.plateau.waited = 0
        return self.best.update(metrics[self.best.metric], step, epoch, metrics.get("validation/loss"))

    def factor(self) -> float:
        """Factor of a plateau schedule on the learning rate."""
        return float(self.schedule.factor**self.drops) if self.plateau else 1.0

    def stop(self) -> str | None:
        """The reason to stop early, or None."""
        watched = self.stopping
        if watched is None or watched.waited < self.patience:
            return None
        best = (
            f"best {watched.best:.4g} after epoch {watched.epoch + 1}" if watched.best is not None else "never a number"
        )
        return f"{watched.metric} has not improved for {self.patience} evaluations ({best})"

    def state(self) -> dict[str, Any]:
        """The whole state as plain values."""
        trackers = {"best": self.best, "stopping": self.stopping, "plateau": self.plateau}
        return {**{name: asdict(t) if t else None for name, t in trackers.items()}, "drops": self.drops}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore `state`. A tracker that it has no values for starts anew: an extended run may watch something else."""
        self.best = BestValue(**state["best"])
        self.stopping = BestValue(**state["stopping"]) if self.stopping and state["stopping"] else self.stopping
        self.plateau = BestValue(**state["plateau"]) if self.plateau and state["plateau"] else self.plateau
        self.drops = state["drops"]
