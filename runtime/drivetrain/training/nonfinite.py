"""Handles non-finite numbers (NaN, infinity) and jumps of the loss, and scales the loss in fp16.

A single bad step is skipped; the weights stay unchanged. After three bad steps in a row, or if a weight is not finite
when a checkpoint is due, the run rolls back to the last checkpoint and skips the bad batches from then on. A jump of
the loss has the same effect if the job requests a rollback. The second rollback ends the run. If the fp16 scaler skips
20 steps in a row, or falls below its minimum scale, the run ends with advice, or rolls back and continues in fp32 if
the job says so.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from drivetrain.data.dataset import onto
from drivetrain.data.stateless_random import Ids
from drivetrain.errors import NumericsError
from drivetrain.job.train import Fp16

MAX_BAD_IN_A_ROW = 3
"""Number of bad steps in a row that roll the run back."""
MAX_ROLLBACKS = 1
MAX_SCALER_SKIPS = 20
"""Number of steps in a row skipped by the fp16 scaler that count as a collapse."""
SPIKE_FACTOR = 10.0
"""Smallest jump of the loss, as a multiple of its recent median."""
SPIKE_WINDOW_STEPS = 50
MIN_SPIKE_SHARE = 0.5
"""Smallest loss after a jump, as a share of the first median loss; jumps to smaller losses are normal."""
ROLLBACK_ADVICE = "lower train.optimizer.lr, set train.clip_norm, or look for NaN in the data"


class RollBack(Exception):
    """The run must go back to its last checkpoint; the same process continues from there."""


class NotFinite(RollBack):
    """Numbers are not finite, or the loss has jumped: the run continues without the batches of the last steps."""


class Fp16Collapse(RollBack):
    """fp16 does not work here: the run continues in fp32."""


class NonfiniteGuard:
    """Counts bad steps and decides how the run reacts.

    Args:
        on_spike: reaction to a jump of the loss: `ignore`, `warn` or `rollback`.
        fp16: bounds of the scaler, and the reaction to its collapse.
    """

    def __init__(self, on_spike: str, fp16: Fp16 | None = None) -> None:
        self.on_spike, self.fp16 = on_spike, fp16 or Fp16()
        self.bad_steps: list[tuple[int, int]] = []
        """(epoch, batch) of consecutive bad steps."""
        self.bad_ids: list[int] = []
        self.skipped_batches: set[tuple[int, int]] = set()
        """Batches that are skipped after a rollback."""
        self.rollbacks = 0
        self.scaler_skips = 0
        self.recent_losses: deque[float] = deque(maxlen=SPIKE_WINDOW_STEPS)
        self.first_median: float | None = None
        """The median loss of the first steps."""

    def record_good(self, loss: float, position: tuple[int, int], ids: Callable[[], Ids]) -> str | None:
        """Record a step with finite numbers; returns a message if the loss jumped.

        No jump is reported in the first SPIKE_WINDOW_STEPS steps, which define the usual loss.

        Args:
            loss: loss of the batch, before the update.
            position: (epoch, batch).
            ids: function that returns the sample ids of the batch.

        Raises:
            NotFinite: if the loss jumped and the job requests a rollback.
        """
        self.bad_steps, self.bad_ids, self.scaler_skips = [], [], 0
        message = self._describe_jump(loss)
        self.recent_losses.append(loss)
        if message is None or self.on_spike != "rollback":
            return message
        self.bad_steps = [position]
        raise NotFinite(f"{message}; samples {ids().tolist()}")

    def _describe_jump(self, loss: float) -> str | None:
        """Return the message about a jump of the loss; None if it did not jump."""
        if len(self.recent_losses) < SPIKE_WINDOW_STEPS or self.on_spike == "ignore":
            return None
        usual_loss = statistics.median(self.recent_losses)
        self.first_median = usual_loss if self.first_median is None else self.first_median
        if loss <= max(SPIKE_FACTOR * abs(usual_loss), MIN_SPIKE_SHARE * abs(self.first_median)):
            return None
        if usual_loss > 0:
            increase = f"{loss / usual_loss:.0f} times its median"
        else:
            increase = f"from a median of {usual_loss:.4g}"
        return f"the loss jumped to {loss:.4g}, {increase} of the last {SPIKE_WINDOW_STEPS} steps"

    def record_skipped(self, position: tuple[int, int], ids: Ids, scale: float | None) -> None:
        """Record a skipped step.

        Args:
            position: (epoch, batch).
            ids: sample ids of the batch.
            scale: scale of the fp16 scaler, which skips steps in normal operation; None without a scaler.

        Raises:
            NotFinite: if it was the third bad step in a row.
            Fp16Collapse: if the scaler has collapsed and the job continues in fp32.
            NumericsError: if the scaler has collapsed and the job has no fallback.
        """
        if scale is not None:
            self.scaler_skips += 1
            if scale < self.fp16.min_scale or self.scaler_skips >= MAX_SCALER_SKIPS:
                self._raise_collapse(
                    f"the fp16 loss scale has collapsed to {scale:g} after {self.scaler_skips} skipped steps in a row"
                )
            return
        self.bad_steps.append(position)
        self.bad_ids += ids.tolist()
        if len(self.bad_steps) >= MAX_BAD_IN_A_ROW:
            steps = f"{MAX_BAD_IN_A_ROW} steps in a row"
            raise NotFinite(f"{steps} had a loss or gradient that is not finite; samples {self.bad_ids}")

    def _raise_collapse(self, text: str) -> None:
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
                f"{problem}, and the run has already been rolled back once", "one rollback per run", ROLLBACK_ADVICE
            )
        self.skipped_batches |= set(self.bad_steps)
        self.bad_steps, self.bad_ids = [], []
        self.recent_losses.clear()

    def state(self) -> dict[str, Any]:
        """Return the whole state as plain values."""
        return {
            "rollbacks": self.rollbacks,
            "skip": sorted(map(list, self.skipped_batches)),
            "recent": list(self.recent_losses),
            "first": self.first_median,
            "bad": list(map(list, self.bad_steps)),
            "ids": self.bad_ids,
            "scaler_skips": self.scaler_skips,
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore `state`; rollbacks in this process continue to count."""
        self.rollbacks = max(self.rollbacks, state["rollbacks"])
        self.skipped_batches |= {(epoch, batch) for epoch, batch in state["skip"]}
        self.recent_losses = deque(state["recent"], maxlen=SPIKE_WINDOW_STEPS)
        self.first_median = state["first"]
        self.bad_steps = [(epoch, batch) for epoch, batch in state["bad"]]
        self.bad_ids, self.scaler_skips = list(state["ids"]), state["scaler_skips"]


def list_nonfinite(tensors: Iterable[tuple[str, torch.Tensor]]) -> list[str]:
    """List the names of the tensors that contain NaN or infinity."""
    floats = [(name, value) for name, value in tensors if value.is_floating_point()]
    if not floats:
        return []
    # A sum is not finite if any element is not. Only then are all elements checked, which is slower. All sums are read
    # at once, because each read waits for the GPU.
    device = floats[0][1].device
    finite = torch.isfinite(torch.stack([value.sum().double().to(device) for _, value in floats])).tolist()
    return [
        name
        for (name, value), is_finite in zip(floats, finite, strict=True)
        if not is_finite and not torch.isfinite(value).all()
    ]


class Scaler:
    """The scale of the loss in fp16, which keeps small gradients from underflowing to zero.

    The rules are the same as in `torch.amp.GradScaler`: a step with non-finite gradients is skipped and lowers the
    scale, a number of good steps in a row raises it. The scale is a Python number with bounds, which can be logged. If
    the host does not wait for the result of a step, the device has a copy of scale and count, which follows the same
    rules one step ahead of the host.

    Args:
        spec: rules for changing the scale; None for no scaling.
    """

    def __init__(self, spec: Fp16 | None = None) -> None:
        self.spec = spec
        self.scale = spec.initial_scale if spec else 1.0
        self.good_steps = 0
        """Consecutive steps with finite gradients since the last change of the scale."""
        self.fell_back = False
        """Whether the run has switched to fp32."""
        self.on_device: tuple[Tensor, Tensor] | None = None
        """Copies of `scale` (float32) and `good_steps` (int32) on the device, shape (); None before they are needed."""

    @property
    def active(self) -> bool:
        """Whether gradients are scaled."""
        return self.spec is not None and not self.fell_back

    def scale_loss(self, loss: Tensor) -> Tensor:
        """Return the loss times the scale, for the backward pass."""
        if not self.active:
            return loss
        return loss * (self.on_device[0] if self.on_device else self.scale)

    @torch.no_grad()
    def unscale(self, parameters: Iterable[nn.Parameter]) -> None:
        """Divide the gradients by the scale; infinite ones stay infinite."""
        gradients = [p.grad for p in parameters if p.grad is not None]
        if not self.active or not gradients:
            return
        if self.on_device:
            torch._foreach_mul_(gradients, self.on_device[0].double().reciprocal().float())
        else:
            torch._foreach_mul_(gradients, 1.0 / self.scale)

    def update(self, finite: bool) -> None:
        """Lower the scale if the step was skipped, raise it after enough good steps."""
        if self.spec is None or self.fell_back:
            return
        if not finite:
            self.scale, self.good_steps = _round_to_float32(self.scale * self.spec.backoff_factor), 0
            return
        self.good_steps += 1
        if self.good_steps >= self.spec.growth_interval:
            grown = min(self.scale * self.spec.growth_factor, self.spec.max_scale)
            self.scale, self.good_steps = _round_to_float32(grown), 0

    @torch.no_grad()
    def update_on_device(self, finite: Tensor) -> None:
        """Update the scale on the device for the next step; the host calls `update` once it knows `finite`."""
        if self.spec is None or self.fell_back:
            return
        if self.on_device is None:
            self.on_device = (
                onto(finite.device, [self.scale])[0],
                onto(finite.device, [self.good_steps], torch.int32)[0],
            )
        scale, good_steps = self.on_device
        grows = good_steps + 1 >= self.spec.growth_interval
        # In float64, as on the host.
        wide_scale = scale.double()
        grown_scale = torch.where(
            grows, (wide_scale * self.spec.growth_factor).clamp(max=self.spec.max_scale), wide_scale
        )
        # In place, because a captured step uses these tensors.
        good_steps.copy_(torch.where(finite & ~grows, good_steps + 1, torch.zeros_like(good_steps)))
        scale.copy_(torch.where(finite, grown_scale, wide_scale * self.spec.backoff_factor))

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint; empty without scaling, unless the training has switched to fp32."""
        if self.spec:
            return {"scale": self.scale, "good": self.good_steps, "fallen": self.fell_back}
        return {"fallen": True} if self.fell_back else {}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore the state from a checkpoint; a switch to fp32 in this process is kept."""
        self.fell_back |= bool(state.get("fallen", False))
        if self.spec and state:
            self.scale, self.good_steps = float(state["scale"]), int(state["good"])
            self.leave_device()

    def leave_device(self) -> None:
        """Continue with the host's scale. Call it only when the host has read the results of all steps."""
        self.on_device = None


def _round_to_float32(number: float) -> float:
    """Return the number that the device's float32 copy holds."""
    return float(np.float32(number))
