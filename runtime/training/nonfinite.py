"""Numerics: what is done about numbers that are not finite.

One bad step is skipped, weights unchanged. Three in a row, or a weight that is not finite when the run is saved: back
to the last checkpoint, and the three batches are left out. A loss that jumps, where the job asks for a rollback: back
too, and that batch is left out. The second time the run ends. An fp16 scaler that skips 20
steps in a row, or falls below its least scale, ends the run with advice, or goes back and on in fp32 if the job says so.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from runtime.data.stateless_random import Ids
from runtime.errors import NumericsError
from runtime.job.train import Fp16

IN_A_ROW = 3
ROLLBACKS = 1
SCALER_SKIPS = 20
SPIKE_FACTOR = 10.0
SPIKE_WINDOW = 50
SPIKE_FLOOR = 0.5
"""Below this share of the first losses a jump is what small losses do, and no harm."""
ADVICE = "lower train.optimizer.lr, set train.clip_norm, or look for NaN in the data"


class NotFinite(Exception):
    """The run must go back to its last checkpoint."""


class Fp16Collapse(Exception):
    """fp16 cannot go on: the run must go back to its last checkpoint, and on in fp32."""


class NonfiniteGuard:
    """Counts bad steps and decides what follows.

    Args:
        on_spike: what follows when the loss jumps: `ignore`, `warn` or `rollback`.
        fp16: the bounds of the scaler, and what follows when it collapses.
    """

    def __init__(self, on_spike: str, fp16: Fp16 | None = None) -> None:
        self.on_spike, self.fp16 = on_spike, fp16 or Fp16()
        self.bad: list[tuple[int, int]] = []
        """(epoch, batch) of the bad steps in a row."""
        self.ids: list[int] = []
        self.skip: set[tuple[int, int]] = set()
        """Batches that are left out after a rollback."""
        self.rollbacks = 0
        self.scaler_skips = 0
        self.recent: deque[float] = deque(maxlen=SPIKE_WINDOW)
        self.first: float | None = None
        """The usual loss of the first steps."""

    def good(self, loss: float, place: tuple[int, int], ids: Callable[[], Ids]) -> str | None:
        """After a step with finite numbers; a word if the loss jumped. The first 50 steps are what later ones are compared with.

        Args:
            loss: of the batch, before the update.
            place: (epoch, batch).
            ids: gives the samples of the batch.

        Raises:
            NotFinite: if the loss jumped and the job wants to go back.
        """
        self.bad, self.ids, self.scaler_skips = [], [], 0
        word = self._jump(loss)
        self.recent.append(loss)
        if word is None or self.on_spike != "rollback":
            return word
        self.bad = [place]
        raise NotFinite(f"{word}; samples {ids().tolist()}")

    def _jump(self, loss: float) -> str | None:
        """What is said of a loss that jumped."""
        if len(self.recent) < SPIKE_WINDOW or self.on_spike == "ignore":
            return None
        usual = statistics.median(self.recent)
        self.first = usual if self.first is None else self.first
        if loss <= max(SPIKE_FACTOR * abs(usual), SPIKE_FLOOR * abs(self.first)):
            return None
        times = f"{loss / usual:.0f} times its median" if usual > 0 else f"from a median of {usual:.4g}"
        return f"the loss jumped to {loss:.4g}, {times} of the last {SPIKE_WINDOW} steps"

    def skipped(self, place: tuple[int, int], ids: Ids, scale: float | None) -> None:
        """After a step that was skipped.

        Args:
            place: (epoch, batch).
            ids: the samples of the batch.
            scale: scale of the fp16 scaler, for which a skipped step is ordinary; None without one.

        Raises:
            NotFinite: if it was the third in a row.
            Collapsed: if the scaler has, and the job goes on in fp32.
            NumericsError: if the scaler has collapsed.
        """
        if scale is not None:
            self.scaler_skips += 1
            if scale < self.fp16.min_scale or self.scaler_skips >= SCALER_SKIPS:
                self._collapse(
                    f"the fp16 scaler has collapsed: scale {scale:g}, {self.scaler_skips} skipped steps in a row"
                )
            return
        self.bad.append(place)
        self.ids += ids.tolist()
        if len(self.bad) >= IN_A_ROW:
            raise NotFinite(f"{IN_A_ROW} steps in a row were not finite; samples {self.ids}")

    def _collapse(self, text: str) -> None:
        self.scaler_skips = 0
        if self.fp16.fallback == "fp32":
            raise Fp16Collapse(text)
        raise NumericsError(
            text,
            "fp16 for gradients that fit its range",
            "set optimize.precision: fp32 (or bf16 where the chip has it), lower the rate, or let the run "
            "go over to fp32 by itself: train.fp16: {fallback: fp32}",
        )

    def roll_back(self, why: NotFinite) -> None:
        """Note a rollback, and leave out the bad batches from now on.

        Raises:
            NumericsError: if the budget of rollbacks is spent.
        """
        self.rollbacks += 1
        if self.rollbacks > ROLLBACKS:
            raise NumericsError(f"{why}, and the run has gone back once already", "one rollback in a run", ADVICE)
        self.skip |= set(self.bad)
        self.bad, self.ids = [], []
        self.recent.clear()

    def state(self) -> dict[str, Any]:
        """Everything, as plain data."""
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
        """Go on from `state`; a rollback in this process is never forgotten."""
        self.rollbacks = max(self.rollbacks, state["rollbacks"])
        self.skip |= {(epoch, batch) for epoch, batch in state["skip"]}
        self.recent = deque(state["recent"], maxlen=SPIKE_WINDOW)
        self.first = state["first"]
        self.bad = [(epoch, batch) for epoch, batch in state["bad"]]
        self.ids, self.scaler_skips = list(state["ids"]), state["scaler_skips"]


def not_finite(tensors: Iterable[tuple[str, torch.Tensor]]) -> list[str]:
    """Names of the tensors that hold NaN or infinity."""
    # The sum is not finite if any element is not; only then is a closer look worth its price.
    return [
        name
        for name, value in tensors
        if value.is_floating_point() and not torch.isfinite(value.sum()) and not torch.isfinite(value).all()
    ]
