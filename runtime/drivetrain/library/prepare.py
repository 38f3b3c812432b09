"""`drivetrain.prepare`: makes a training step for a user's own loop, with a plan for this machine.

with drivetrain.prepare(network, optimizer, loss=my_loss) as step:
    for batch in loader:
        loss = step(batch)
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from drivetrain import optimizations
from drivetrain.data.custom.map_dataset import describe
from drivetrain.data.custom.user_loss import SPLITTABLE
from drivetrain.data.notes import list_names
from drivetrain.errors import DrivetrainError, NumericsError, OutOfMemory, SpecError
from drivetrain.hardware.detect import detect
from drivetrain.hardware.facts import Hardware
from drivetrain.job.embedded import EmbeddedJob
from drivetrain.library import call_settings, components, host_process
from drivetrain.library.components import Refusal
from drivetrain.models import inspection
from drivetrain.models.forward_pass import ForwardPass
from drivetrain.optimizations import Effect
from drivetrain.plan import plan as plans
from drivetrain.plan.plan import Plan
from drivetrain.plan.plan_table import render
from drivetrain.system.console import open_console, say
from drivetrain.training import torch_setup
from drivetrain.training.lockstep import HalfUpdated
from drivetrain.training.loop_step import Accumulation, LoopLoss, UserGenerators
from drivetrain.training.nonfinite import Fp16Collapse, NonfiniteGuard, NotFinite, Scaler
from drivetrain.training.step import Step
from drivetrain.training.step_result import BatchLoss, StepResult
from drivetrain.training.updater import Updater
from drivetrain.training.user_batches import UserBatches
from drivetrain.training.user_parts import UserOptimizer

WHY_OFF = "your loop reads the data, and builds the optimizer"
"""Reason in the plan for turning off all other optimizations."""


def prepare(
    model: nn.Module,
    optimizer: Optimizer | Callable[[list[nn.Parameter]], Optimizer],
    *,
    loss: Callable[[Any, Any], Any] | None = None,
    weight_of: Callable[[Any], Any] | None = None,
    clip_norm: float | None = None,
    accumulate: int = 1,
    gpus: str | Sequence[int] | None = None,
    optimize: Mapping[str, bool | int | float | str] | None = None,
    fp16: Mapping[str, Any] | None = None,
    deterministic: bool | str = "auto",
    limits: Mapping[str, Any] | None = None,
    quiet: bool = False,
) -> contextlib.AbstractContextManager[PreparedStep]:
    """Return a training step for your own loop, with a plan for this machine.

    The network is moved to its device when the block begins. Threads, precision and other settings of torch apply
    inside the `with` block and are restored after it. There are no checkpoints, records or signal handlers.

    Args:
        model: the network.
        optimizer: an optimizer for its parameters, or a function of the list of trainable parameters that returns one.
        loss: a callable of (outputs, targets) that returns the mean of the samples, or one term for each; of (outputs,
            batch) if batches are mappings. None if the model returns the loss.
        weight_of: a function of the targets of some samples, or of the batch if it is a mapping or the model returns
            the loss; returns the divisor of their summed loss, or one number per sample. Without it, trial calls
            determine whether the loss is a mean or a sum; if it is neither, a batch is not split.
        clip_norm: largest gradient norm; None for no clipping.
        accumulate: number of batches per update, which all have the same weight.
        gpus: `auto`, `none` or a list of one number.
        optimize: optimizations by name: precision, micro_batch, compile, channels_last, cpu_threads, ...
        fp16: scaling of the gradients if the precision is fp16, as in the spec.
        deterministic: as in the spec.
        limits: `gpus` and `gpu_memory`, as in the spec.
        quiet: whether to skip printing the plan.

    Raises:
        SpecError: if an argument cannot be used.
        DeviceError: if the GPU cannot be used.
    """
    call_site = call_settings.locate(sys._getframe(1))
    refuse = components.make_refusal(call_site)
    components.check_module(model, refuse)
    _check_arguments(accumulate, optimize or {}, weight_of, refuse)
    user_optimizer = components.user_optimizer(optimizer, model, refuse, stored=False)
    train_keys: dict[str, object] = {
        "clip_norm": clip_norm,
        "deterministic": deterministic,
        "optimizer": components.optimizer_spec(user_optimizer.optimizer),
        # The user's loop sets the rates.
        "schedule": "constant",
    }
    if fp16 is not None:
        train_keys["fp16"] = dict(fp16)
    job = _build_job(
        train_keys, dict(optimize or {}), call_settings.build_limits(limits or {}, gpus, refuse), call_site
    )
    objective = LoopLoss(UserBatches(model, loss), accumulate, weight_of)
    _warn_of_untrained(objective.user_batches)
    machine = host_process.select_gpu(detect(Path()), job)
    plan = _make_plan(job, machine, model)
    if not quiet:
        open_console().print(render(plan, job, machine))
    return _run_block(job, machine, plan, model, user_optimizer, objective)


def _build_job(
    train: Mapping[str, object], optimize: Mapping[str, object], limits: Mapping[str, object], call_site: str
) -> EmbeddedJob:
    """Build the checked job of a user's own loop."""
    spec_keys = {"name": "prepare", "task": "python", "train": train, "optimize": optimize, "limits": limits}
    job = call_settings.build_job(spec_keys, call_site)
    # The size is known from the loop's first batch; set `auto` here, because a call with `auto` is refused elsewhere.
    return job.model_copy(update={"train": job.train.model_copy(update={"batch_size": "auto"})})


def _check_arguments(accumulate: object, optimize: Iterable[str], weight_of: object, refuse: Refusal) -> None:
    """Check the arguments that the schema of a spec does not cover.

    Raises:
        SpecError: if an argument is not possible in a user's own loop.
    """
    if not isinstance(accumulate, int) or accumulate < 1:
        raise refuse("accumulate", f"is {accumulate!r}", "a number of batches, 1 or more", "pass such a number")
    possible = [optimization.name for optimization in optimizations.every() if optimization.apply_in_loop]
    for name in optimize:
        if name in optimizations.off_values() and name not in possible:
            allowed = f"{', '.join(possible)}: {WHY_OFF}"
            raise refuse(f"optimize.{name}", "is set", allowed, "remove it")
    if weight_of is not None and not callable(weight_of):
        raise refuse("weight_of", f"is {describe(weight_of)}", "a function of targets or batch", "pass a function")


def _warn_of_untrained(user_batches: UserBatches) -> None:
    """Print a line if the loss has trainable parameters that the model does not have."""
    untrained = user_batches.list_untrained()
    if untrained:
        say(
            f"loss: its parameters {list_names(untrained, 3)} are not trained, because the optimizer has only parameters of the "
            "model; put the loss into the model, which may return it"
        )


def _make_plan(job: EmbeddedJob, machine: Hardware, model: nn.Module) -> Plan:
    """Make the plan for a user's own loop, without optimizations of the data or of building the optimizer."""
    # Nothing is measured in a user's own loop, and it may predict numbers.
    facts = replace(inspection.inspect_network(model), numeric=True)
    resolved = host_process.keep_process_settings(plans.resolve(job, machine, facts), machine)
    off_values = {each.name: each.off for each in optimizations.every() if each.apply_in_loop is None}
    rows = []
    for row in resolved.decisions:
        if row.source != "process" and row.name in off_values:
            # An optimization that is off changes no result and will not be measured later.
            row = row.learn(off_values[row.name], "choice", WHY_OFF)
            row = replace(row, effect=str(Effect.EXACT), provisional=False)
        rows.append(row)
    return resolved.with_rows(rows)


@contextlib.contextmanager
def _run_block(
    job: EmbeddedJob, machine: Hardware, plan: Plan, model: nn.Module, optimizer: UserOptimizer, objective: LoopLoss
) -> Iterator[PreparedStep]:
    """Apply the plan to a step for the block of `prepare`, and restore the process-wide settings at its end."""
    with host_process.restore_torch_settings():
        device = torch.device("cuda:0" if machine.gpu else "cpu")
        torch_setup.apply_settings(job, machine, device)
        model.to(device)
        built = optimizer.build(model)
        forward, generators = ForwardPass(model, objective, device), UserGenerators(device)
        forward.compute, forward.seed_generators = objective.user_batches.forward, generators.prepare_try
        step = Step(forward, Updater(model, built, job.train.clip_norm))
        run = LoopRun(job, machine, plan, device, model, built, step)
        for optimization in optimizations.every():
            value = plan.value(optimization.name)
            if optimization.apply_in_loop and value != optimization.off:
                optimization.apply_in_loop(run, value)
        forward.deterministic_only = device.type == "cuda" and job.train.is_deterministic(on_gpu=True)
        prepared = PreparedStep(run, objective, generators)
        try:
            yield prepared
        finally:
            prepared.close()


@dataclass(frozen=True)
class LoopRun:
    """The parts of a run that exist in a user's own loop."""

    job: EmbeddedJob
    hardware: Hardware
    plan: Plan
    device: torch.device
    model: nn.Module
    optimizer: Optimizer
    step: Step


class PreparedStep:
    """One training step: `loss = step(batch)`. `drivetrain.prepare` returns it for use in its `with` block.

    Args:
        run: network, optimizer and step with the applied plan.
        objective: loss of the user's batches, and number of batches per update.
        generators: random generators of the loop.
    """

    def __init__(self, run: LoopRun, objective: LoopLoss, generators: UserGenerators) -> None:
        self._run, self._objective, self._generators = run, objective, generators
        self._gradients = Accumulation(run.step.updater.parameters, objective.batches_per_update)
        self._guard = NonfiniteGuard("ignore", run.job.train.fp16)
        self._is_open, self._has_stepped = True, False
        self.updates = 0
        """Number of updates that changed the weights."""
        self.skipped = 0
        """Number of skipped updates, whose loss or gradients were not finite."""
        self.last: StepResult | None = None
        """Result of the last update: loss, gradient norm before clipping, and whether both were finite."""

    def close(self) -> None:
        """End the use of the step; prints the number of batches that no update has used."""
        self._is_open = False
        if self._gradients.count:
            say(
                f"prepare: {self._gradients.count} batches after the last update were not used; flush() updates with them"
            )

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
        """Current loss scale; 1 without fp16."""
        scaler: Scaler = self._run.step.updater.scaler
        return scaler.scale if scaler.active else 1.0

    @property
    def micro_batch(self) -> int | None:
        """Number of samples computed at a time; None for the whole batch."""
        return self._run.step.forward.micro_batch

    def __call__(self, batch: Any) -> float:
        """Train on a batch; every `accumulate` batches the weights are updated.

        Returns:
            The mean loss of the batch, before the update.

        Raises:
            SpecError: if model and loss do not return a loss.
            DataError: if the batch has an unknown form.
            NumericsError: if loss or gradients were not finite in three updates in a row, or the fp16 scale collapsed.
            OutOfMemory: if a single sample is too large.
        """
        if not self._is_open:
            raise SpecError(
                "the step of drivetrain.prepare is called outside of its with block",
                "calls inside the block, in which threads and precision are set",
                "write: with drivetrain.prepare(...) as step:",
            )
        if not self._has_stepped and not any(layer.training for layer in self._run.model.modules()):
            say(
                "model: is in evaluation mode: dropout does nothing, BatchNorm keeps its statistics; call .train() before the loop"
            )
        self._has_stepped = True
        device_batch = self._objective.user_batches.to_batch(batch).to(self.device)
        self._objective.current_batch = device_batch
        step, gradients = self._run.step, self._gradients
        self._check_split(len(device_batch))
        self._generators.states = None
        loss = float(step.compute_gradients(device_batch).total)
        # The loss is already divided by the number of batches per update, so the sum is the mean.
        if gradients.count + 1 < gradients.batches:
            gradients.store_gradients(loss)
        else:
            gradients.add_earlier()
            self._update(gradients.loss + loss)
        return loss * gradients.batches

    def _check_split(self, size: int) -> None:
        """Check that a batch of this size is not split although its loss cannot be; raises SpecError if it is."""
        micro_batch, whole_reason = self.micro_batch, self._objective.user_batches.whole
        is_split = (micro_batch or size) < size
        if whole_reason:
            # Such a batch is computed as a whole, so only a requested micro-batch is an error.
            is_split = isinstance(self.plan.value("micro_batch"), int)
        if not is_split:
            return
        obstacle = self._objective.split_obstacle
        if obstacle:
            action = "remove micro_batch; for less memory pass smaller batches, and accumulate=N"
            action += "" if whole_reason else f"; {SPLITTABLE}"
            raise SpecError(f"optimize.micro_batch is {micro_batch}, and {obstacle}", "the whole batch at once", action)

    def flush(self) -> StepResult | None:
        """Update with the mean of the batches since the last update, as at the end of an epoch; None without any."""
        if not self._gradients.count:
            return None
        return self._update(self._gradients.take_incomplete())

    def _update(self, loss: float) -> StepResult:
        step = self._run.step
        self._gradients.clear()
        try:
            total = torch.tensor(loss, dtype=torch.float64, device=self.device)
            outcome = step.update(BatchLoss(total), len(self._objective.current_batch or ()))
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
        """Count the update; too many consecutive updates that are not finite end the loop."""
        if outcome.finite:
            self.updates += 1
            self._guard.bad_steps, self._guard.scaler_skips = [], 0
            return
        self.skipped += 1
        scaler = self._run.step.updater.scaler
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
        """Use the precision of the plan within the block, for an evaluation in your loop."""
        with self._run.step.forward.cast():
            yield

    def state_dict(self) -> dict[str, Any]:
        """Return scaler and counters as plain values, for your checkpoint next to the states of network and optimizer.

        Raises:
            DrivetrainError: if called between the batches of an update.
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
            "scaler": self._run.step.updater.scaler.state(),
            "micro_batch": self._run.step.forward.micro_batch,
            "numerics": self._guard.state(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the values of `state_dict`."""
        self.updates, self.skipped = int(state["updates"]), int(state["skipped"])
        step = self._run.step
        step.updater.scaler.load(state["scaler"])
        if step.updater.scaler.fell_back:
            step.fall_back_to_fp32()
        if state["micro_batch"] is not None:
            step.use_micro_batch(min(state["micro_batch"], step.forward.micro_batch or state["micro_batch"]))
        self._guard.load(state["numerics"])
