"""The best value of a metric: a training picks its model by this rule, and `watch` names its epoch."""

from __future__ import annotations

import math
from dataclasses import dataclass

from drivetrain.job import lower_is_better


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

        Ties go to the lower `loss`: on few samples an accuracy soon reaches its maximum, while the network still improves.
        """
        direction = -1 if lower_is_better(self.metric) else 1
        if value == self.best and loss is not None and self.loss is not None:
            improved = loss < self.loss
        else:
            improved = not math.isnan(value) and (self.best is None or direction * (value - self.best) > self.min_delta)
        if improved:
            self.best, self.step, self.epoch, self.waited, self.loss = value, step, epoch, 0, loss
        else:
            self.waited += 1
        return improved
