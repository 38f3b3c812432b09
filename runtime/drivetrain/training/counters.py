"""The position of a run: what its checkpoints store and its events are dated with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Counters:
    """The position of the run."""

    epoch: int = 0
    """The current epoch, from 0."""
    batch: int = 0
    """Batches of this epoch that are done."""
    step: int = 0
    """Optimizer steps that are done."""
    samples: int = 0
    """Samples processed."""
    solved: bool = False
    """Whether the heads were solved in place of the first epochs."""
    seconds: float = 0.0
    """Training time of earlier attempts."""
    length_changes: list[tuple[int, int]] = field(default_factory=list)
    """Of `train.within`: steps, and the total number of steps from there on."""

    def count_step(self, samples: int) -> None:
        """Go to the next batch after a step on so many samples."""
        self.step, self.batch, self.samples = self.step + 1, self.batch + 1, self.samples + samples

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Take the values of a checkpoint; this object stays the one that the step and the batches report with."""
        restored = Counters(**saved)
        restored.length_changes = [(step, total) for step, total in restored.length_changes]
        vars(self).update(vars(restored))
