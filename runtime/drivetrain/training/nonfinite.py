"""Handles non-finite numbers (NaN, infinity) and jumps of the loss.

A single bad step is skipped; the weights stay unchanged. After three in a row, or if a weight is not finite when a
checkpoint is due, the run rolls back to the last checkpoint, and the bad batches are skipped from then on. A jump of
the loss does the same if the job requests a rollback. The second rollback ends the run. If the fp16 scaler skips 20
steps in a row, or falls below its minimum scale, the run ends with advice, or rolls back and continues in fp32 if the
job says so.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from drivetrain.data.stateless_random import Ids
from drivetrain.errors import NumericsError
from drivetrain.job.train import Fp16

IN_A_ROW = 3
MAX_ROLLBACKS = 1
SCALER_SKIPS = 20
SPIKE_FACTOR = 10.0
SPIKE_WINDOW = 50
SPIKE_FLOOR = 0.5
"""Share of the first losses; jumps of smaller losses are normal and ignored."""
ADVICE = "lower train.optimizer.lr, set train.clip_norm, or look for NaN in the data"


class NotFinite(Exception):
    """The run must roll back to its last checkpoint."""


class Fp16Collapse(Exception):
    """fp16 does not work here: the run must roll back to its last checkpoint and continue in fp32."""


class NonfiniteGuard:
    """Counts bad steps and decides what follows.

    Args:
        on_spike: what follows if the loss jumps: `ignore`, `warn` or `rollback`.
        fp16: bounds of the scaler, and what follows if it collapses.
    """

    def __init__(self, on_spike: str, fp16: Fp16 | None = None) -> None:
        self.on_spike, self.fp16 = on_spike, fp16 or Fp16()
        self.bad: list[tuple[int, int]] = []
        """(epoch, batch) of consecutive bad steps."""
        self.ids: list[int] = []
        self.skip: set[tuple[int, int]] = set()
        """Batches that are skipped after a rollback."""
        self.rollbacks = 0
        self.scaler_skips = 0
        self.recent: deque[float] = deque(maxlen=SPIKE_WINDOW)
        self.first: float | None = None
        """The median loss of the first steps."""

    def good(self, loss: float, position: tuple[int, int], ids: Callable[[], Ids]) -> str | None:
        """Record a step with finite numbers; returns a message if the loss jumped. The first 50 steps set the usual
        loss.

        Args:
            loss: of the batch, before the update.
            position: (epoch, batch).
            ids: returns the sample ids of the batch.

        Raises:
            NotFinite: if the loss jumped and the job requests a rollback.
        """
        self.bad, self.ids, self.scaler_skips = [], [], 0
        word = self._jump(loss)
        self.recent.append(loss)
        if word is None or self.on_spike != "rollback":
            return word
        self.bad = [position]
        raise NotFinite(f"{word}; samples {ids().tolist()}")

    def _jump(self, loss: float) -> str | None:
        """The message about a loss that jumped; None if it did not."""
        if len(self.recent) < SPIKE_WINDOW or self.on_spike == "ignore":
            return None
        usual = statistics.median(self.recent)
        self.first = usual if self.first is None else self.first
        if loss <= max(SPIKE_FACTOR * abs(usual), SPIKE_FLOOR * abs(self.first)):
            return None
        times = f"{loss / usual:.0f} times its median" if usual > 0 else f"from a median of {usual:.4g}"
        return f"the loss jumped to {loss:.4g}, {times} of the last {SPIKE_WINDOW} steps"

    def skipped(self, position: tuple[int, int], ids: Ids, scale: float | None) -> None:
        """Record a skipped step.

        Args:
            position: (epoch, batch).
            ids: sample ids of the batch.
            scale: scale of the fp16 scaler, for which skipped steps are normal; None without one.

        Raises:
            NotFinite: if it was the third in a row.
            Fp16Collapse: if the scaler has collapsed and the job continues in fp32.
            NumericsError: if the scaler has collapsed and the job does not.
        """
        if scale is not None:
            self.scaler_skips += 1
            if scale < self.fp16.min_scale or self.scaler_skips >= SCALER_SKIPS:
                self._collapse(
                    f"the fp16 loss scale has collapsed to {scale:g} after {self.scaler_skips} skipped steps in a row"
                )
            return
        self.bad.append(position)
        self.ids += ids.tolist()
        if len(self.bad) >= IN_A_ROW:
            raise NotFinite(f"{IN_A_ROW} steps in a row had a loss or gradient that is not finite; samples {self.ids}")

    def _collapse(self, text: str) -> None:
        self.scaler_skips = 0
        if self.fp16.fallback == "fp32":
            raise Fp16Collapse(text)
        raise NumericsError(
            text,
            "fp16 with gradients inside its range",
            "set optimize.precision: fp32 (or bf16 where the chip has it), lower the learning rate, or let the run "
            "switch to fp32: train.fp16: {fallback: fp32}",
        )

    def roll_back(self, problem: NotFinite) -> None:
        """Record a rollback, and skip the bad batches from now on.

        Raises:
            NumericsError: if no further rollback is allowed.
        """
        self.rollbacks += 1
        if self.rollbacks > MAX_ROLLBACKS:
            raise NumericsError(
                f"{problem}, and the run has already been rolled back once", "one rollback per run", ADVICE
            )
        self.skip |= set(self.bad)
        self.bad, self.ids = [], []
        self.recent.clear()

    def state(self) -> dict[str, Any]:
        """The whole state as plain values."""
        return {
            "rollbacks": self.rollbacks,
            "skip": sorted(map(list, self.skip)),
            "recent": list(self.recent),
            "first": self.first,
            "bad": list(map(list, self.bad)),
            "ids": self.ids,
            "scaler_skips": self.scaler_skips,
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore `state`; rollbacks in this process still count."""
        self.rollbacks = max(self.rollbacks, state["rollbacks"])
        self.skip |= {(epoch, batch) for epoch, batch in state["skip"]}
        self.recent = deque(state["recent"], maxlen=SPIKE_WINDOW)
        self.first = state["first"]
        self.bad = [(epoch, batch) for epoch, batch in state["bad"]]
        self.ids, self.scaler_skips = list(state["ids"]), state["scaler_skips"]


def not_finite(tensors: Iterable[tuple[str, torch.Tensor]]) -> list[str]:
    """Names of the tensors that contain NaN or infinity."""
    numbers = [(name, value) for name, value in tensors if value.is_floating_point()]
    if not numbers:
        return []
    # A sum is not finite if any element is not; only then all elements are checked, which is slower. All sums are read
    # at once, because each reading waits for a GPU.
    device = numbers[0][1].device
    finite = torch.isfinite(torch.stack([value.sum().double().to(device) for _, value in numbers])).tolist()
    return [
        name
        for (name, value), fine in zip(numbers, finite, strict=True)
        if not fine and not torch.isfinite(value).all()
    ]
