"""Metrics of a Python program, such as those of torchmetrics: reset, updated and computed in every evaluation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from runtime.data.custom.user_errors import blamed
from runtime.data.dataset import Head
from runtime.errors import UserCodeError


class UserMetrics:
    """Metrics by name; each has `reset()`, `update(outputs, targets)` and `compute()`."""

    def __init__(self, metrics: Mapping[str, Any] | None = None) -> None:
        self.metrics = dict(metrics or {})

    def begin(self) -> None:
        """Start an evaluation."""
        for name, metric in self.metrics.items():
            with _blamed(name, "reset"):
                metric.reset()

    def add(
        self, outputs: Tensor | Mapping[str, Tensor], targets: Mapping[str, Tensor], heads: Mapping[str, Head]
    ) -> None:
        """Add a batch: outputs (N, outputs), and the targets of the same samples.

        Labels are whole numbers, (N, labels); a single number for each sample is (N,), as are its outputs.

        Raises:
            UserCodeError: if a metric raises.
        """
        if not self.metrics:
            return
        assert isinstance(outputs, Tensor), "a network of a Python program has one output"
        found, goal, head = outputs.float(), targets[""], heads[""]
        if head.several:
            goal = goal.long()
        elif len(head.columns) == 1:
            found, goal = found.reshape(len(found)), goal.reshape(len(goal))
        for name, metric in self.metrics.items():
            with _blamed(name, "update"):
                if hasattr(metric, "to"):
                    metric.to(found.device)
                metric.update(found, goal)

    def values(self) -> dict[str, float]:
        """The value of each metric, as `validation/NAME`.

        Raises:
            UserCodeError: if a metric raises, or gives no single number.
        """
        return dict(self._computed())

    def _computed(self) -> Iterator[tuple[str, float]]:
        for name, metric in self.metrics.items():
            with _blamed(name, "compute"):
                found = metric.compute()
            if not isinstance(found, Tensor | int | float) or (isinstance(found, Tensor) and found.numel() != 1):
                shape = f"a tensor of shape {tuple(found.shape)}" if isinstance(found, Tensor) else type(found).__name__
                raise UserCodeError(
                    f"metrics: {name}: compute() gives {shape}",
                    "one number for each metric",
                    'average it, as with average="macro", or give each metric of a collection by its name',
                )
            yield f"validation/{name}", float(found)


def _blamed(name: str, part: str) -> Any:
    return blamed(lambda told, do: UserCodeError(f"metrics: {name}: {part}() raised {told}", "", do))
