"""Plan, precision, scaler, clipping and micro-batches for a training loop of the user's own.

with drivetrain.prepare(network, optimizer, loss=my_loss) as step:
    for batch in loader:
        loss = step(batch)
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from drivetrain.data.custom.loss_division import SPLITTABLE
from drivetrain.errors import DrivetrainError, NumericsError, OutOfMemory, SpecError
from drivetrain.job.embedded import EmbeddedJob
from drivetrain.optimizations.interface.assembled_run import NetworkRun
from drivetrain.plan.plan import Plan
from drivetrain.system.console import say
from drivetrain.training.grad_scaler import Scaler
from drivetrain.training.loop_step import Accumulation, LoopLoss, LoopStep
from drivetrain.training.nonfinite import Fp16Collapse, NonfiniteGuard, NotFinite
from drivetrain.training.peers import HalfUpdated
from drivetrain.training.step_result import StepResult


@dataclass(kw_only=True)
class LoopRun(NetworkRun):
    """The run of a user's loop, to which the optimizations in `prepare.STEP_OPTIMIZATIONS` are applied."""

    job: EmbeddedJob
    plan: Plan
    step: LoopStep


class PreparedStep:
    """One training step: `loss = step(batch)`. `drivetrain.prepare` returns it, for use in its `with` block.

    Args:
        run: the network, its optimizer and its step, to which the plan was applied.
        objective: the loss of the user's batches, and the number of batches of an update.
    """

    def __init__(self, run: LoopRun, objective: LoopLoss) -> None:
        self._run, self._objective = run, objective
        self._gradients = Accumulation(run.step.parameters, objective.batches_per_update)
        self._guard = NonfiniteGuard("ignore", run.job.train.fp16)
        self._open = False
        self.updates = 0
        """Number of updates that changed the weights."""
        self.skipped = 0
        """Number of updates that were left out because loss or gradients were not finite."""
        self.last: StepResult | None = None
        """The last update: its loss, its gradient norm before clipping, and whether both were finite."""

    @contextlib.contextmanager
    def opened(self) -> Iterator[PreparedStep]:
        """The block in which the step may be called; at its end it prints how many batches no update has used."""
        self._open = True
        try:
            yield self
        finally:
            self._open = False
            if unused_batches := self._gradients.count:
                say(f"prepare: {unused_batches} batches after the last update were not used; flush() updates with them")

    @property
    def plan(self) -> Plan:
        """The plan: every decision with its reason."""
        return self._run.plan

    @property
    def device(self) -> torch.device:
        """The device of the network; batches are moved there."""
        return self._run.device

    @property
    def scale(self) -> float:
        """The present loss scale; 1 without fp16."""
        scaler: Scaler = self._run.step.scaler
        return scaler.scale if scaler.active else 1.0

    @property
    def micro_batch(self) -> int | None:
        """Samples that are computed at a time; None for the whole batch."""
        return self._run.step.micro_batch

    def __call__(self, batch: Any) -> float:
        """Train on a batch; every `accumulate` batches the weights are updated.

        Returns:
            The mean loss of the batch, before the update.

        Raises:
            SpecError: if model and loss give no loss.
            DataError: if the batch has none of the forms.
            NumericsError: if loss or gradients were not finite in three updates in a row, or the fp16 scale collapsed.
            OutOfMemory: if a single sample is too much.
        """
        if not self._open:
            raise SpecError(
                "the step of drivetrain.prepare is called outside of its with block",
                "calls inside of the block, in which threads and precision are set",
                "write: with drivetrain.prepare(...) as step:",
            )
        device_batch = self._objective.user_batches.to_batch(batch).to(self.device)
        self._objective.current_batch = device_batch
        step, gradients = self._run.step, self._gradients
        size = len(device_batch)
        if (step.micro_batch or size) < size and (obstacle := self._objective.split_obstacle):
            raise SpecError(
                f"optimize.micro_batch is {step.micro_batch}, and {obstacle}", "the whole batch at once", SPLITTABLE
            )
        step.random.clear()
        loss = float(step.compute_gradients(device_batch, 0))
        # The loss is already divided by the batches of an update, so that their sum is the mean.
        if gradients.count + 1 < gradients.batches:
            gradients.store_gradients(loss)
        else:
            self._update(gradients.loss + loss)
        return loss * gradients.batches

    def flush(self) -> StepResult | None:
        """Update with the batches since the last update, for instance at the end of an epoch; None if there are none."""
        if not self._gradients.count:
            return None
        return self._update(self._gradients.loss)

    def _update(self, loss: float) -> StepResult:
        step = self._run.step
        self._gradients.add_earlier()
        self._gradients.clear()
        try:
            outcome = step.update(
                torch.tensor(loss, dtype=torch.float64, device=self.device), len(self._objective.current_batch or ())
            )
        except HalfUpdated:
            raise OutOfMemory(
                "out of memory in the middle of an update: some weights are new and some old",
                "the weights of your last checkpoint",
                "load it, and continue with a smaller micro_batch",
            ) from None
        self.last = outcome
        self._judge(outcome)
        return outcome

    def _judge(self, outcome: StepResult) -> None:
        """Count the update; too many in a row that are not finite end the loop."""
        if outcome.finite:
            self.updates += 1
            self._guard.bad_steps, self._guard.scaler_skips = [], 0
            return
        self.skipped += 1
        scaler = self._run.step.scaler
        say(f"numbers: update skipped: loss {outcome.loss:.4g}, gradient norm {outcome.grad_norm:.4g}")
        try:
            nothing = torch.empty(0, dtype=torch.int64).numpy()
            self._guard.record_skipped(
                (0, self.updates + self.skipped), nothing, scaler.scale if scaler.active else None
            )
        except NotFinite:
            raise NumericsError(
                "three updates in a row had a loss or gradient that is not finite",
                "finite numbers; the weights are those before the first of them",
                "lower the learning rate, set clip_norm, or look for NaN in the data",
            ) from None
        except Fp16Collapse as problem:
            self._run.step.fall_back_to_fp32()
            say(f"precision: {problem}; continuing in fp32 (fp16.fallback)")

    @contextlib.contextmanager
    def autocast(self) -> Iterator[None]:
        """The precision of the plan, for an evaluation in your loop."""
        with self._run.step.cast():
            yield

    def state_dict(self) -> dict[str, Any]:
        """Scaler and counters as plain values, for a checkpoint of yours beside those of network and optimizer.

        Raises:
            DrivetrainError: between the batches of an update.
        """
        if self._gradients.count:
            raise DrivetrainError(
                f"state_dict is called after {self._gradients.count} of {self._gradients.batches} batches of an update",
                "after an update: gradients are not stored",
                "call it later, or call flush() first",
            )
        return {
            "updates": self.updates,
            "skipped": self.skipped,
            "scaler": self._run.step.scaler.state(),
            "micro_batch": self._run.step.micro_batch,
            "numerics": self._guard.state(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore `state_dict`."""
        self.updates, self.skipped = int(state["updates"]), int(state["skipped"])
        step = self._run.step
        step.scaler.load(state["scaler"])
        if step.scaler.fell_back:
            step.fall_back_to_fp32()
        if state["micro_batch"] is not None:
            step.use_micro_batch(min(state["micro_batch"], step.micro_batch or state["micro_batch"]))
        self._guard.load(state["numerics"])
