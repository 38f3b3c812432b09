"""What a Python program brings to its training, beside network, data and loss."""

from __future__ import annotations

from dataclasses import dataclass, field

from runtime.training.callbacks import Callbacks
from runtime.training.evaluation.user_metrics import UserMetrics
from runtime.training.user_optimizer import UserOptimizer, UserSchedule


@dataclass(frozen=True)
class UserParts:
    """Parts of a Python program; a training from a job file has none."""

    optimizer: UserOptimizer | None = None
    schedule: UserSchedule | None = None
    metrics: UserMetrics = field(default_factory=UserMetrics)
    callbacks: Callbacks = field(default_factory=Callbacks)
