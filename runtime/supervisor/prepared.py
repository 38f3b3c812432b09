"""Plan, precision, scaler, clipping and micro-batches for a training loop of the user's own.

with runtime.prepare(network, optimizer, loss=my_loss) as step:
    for batch in loader:
        loss = step(batch)
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn
from torch.optim import Optimizer

from runtime import optimizations
from runtime.errors import DrivetrainError, NumericsError, OutOfMemory, SpecError
from runtime.hardware.detect import detect
from runtime.hardware.facts import Hardware
from runtime.job.embedded import EmbeddedJob
from runtime.models import inspection
from runtime.optimizations import AssembledRun, Effect
from runtime.plan import plan as plans
from runtime.plan.plan import Plan
from runtime.plan.plan_table import render
from runtime.supervisor import embedded_call, embedded_parts, host_process
from runtime.system.console import console, say
from runtime.training import torch_setup
from runtime.training.agreement import HalfUpdated
from runtime.training.grad_scaler import Scaler
from runtime.training.loop_step import Accumulation, Forms, LoopLoss, LoopStep
from runtime.training.nonfinite import Fp16Collapse, NonfiniteGuard, NotFinite
from runtime.training.step_options import StepOptions
from runtime.training.step_result import StepResult
from runtime.training.user_optimizer import UserOptimizer

USED = (
    "cpu_threads",
    "denormals",
    "attention",
    "cudnn_benchmark",
    "channels_last",
    "precision",
    "micro_batch",
    "gradient_checkpointing",
    "compile",
    "cuda_graphs",
)
"""Optimizations that act on the network and its step; all others act on data that the runtime reads."""
LEFT = "your loop reads the data, and builds the optimizer"


@dataclass
class LoopRun:
    """What the optimizations in `USED` may read and change; the rest of a run does not exist in a loop of the user."""

    job: EmbeddedJob
    hardware: Hardware
    plan: Plan
    device: torch.device
    model: nn.Module
    optimizer: Optimizer
    step: LoopStep

    def configure_step(self, **options: object) -> None:
        """Give the step other options."""
        self.step = cast(LoopStep, self.step.configured(**options))

    def autocast_step(self, dtype: torch.dtype, scaling: Any = None) -> None:
        """Run the step's forward pass under autocast, and scale its gradients if `scaling` is given."""
        self.step = cast(LoopStep, self.step.autocast(dtype, scaling))

    def compile_step(self, *, graphs: bool = False) -> None:
        """Compile the step's forward pass."""
        self.step = cast(LoopStep, self.step.compile(graphs=graphs))


class PreparedStep:
    """One training step: `loss = step(batch)`. Made by `runtime.prepare`, for use in its `with` block.

    Args:
        run: the applied plan.
        forms: of the batches.
        accumulate: batches of an update.
    """

    def __init__(self, run: LoopRun, forms: Forms, objective: LoopLoss, accumulate: int) -> None:
        self._run, self._forms, self._objective = run, forms, objective
        self._gradients = Accumulation(run.step.parameters, accumulate)
        self._guard = NonfiniteGuard("ignore", run.job.train.fp16)
        self._open = False
        self.updates = 0
        """Updates that were made."""
        self.skipped = 0
        """Updates that were left out, because loss or gradients were not finite."""
        self.last: StepResult | None = None
        """Loss, gradient norm before clipping, and whether they were finite, of the last update."""

    @property
    def plan(self) -> Plan:
        """Every decision with its reason."""
        return self._run.plan

    @property
    def device(self) -> torch.device:
        """Where the network computes; batches are moved there."""
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
                "the step of runtime.prepare is called outside of its with block",
                "calls inside of the block, in which threads and precision are set",
                "write: with runtime.prepare(...) as step:",
            )
        ready = self._forms.batch(batch).to(self.device)
        self._objective.size = len(ready)
        step, kept = self._run.step, self._gradients
        step.random.clear()
        loss = float(step.computed(ready, 0)[0])
        if kept.count + 1 < kept.batches:
            kept.keep(loss)
        else:
            self._update(kept.loss + loss)
        return loss * kept.batches

    def flush(self) -> StepResult | None:
        """Update with the batches since the last update, as at the end of an epoch; None if there are none."""
        if not self._gradients.count:
            return None
        return self._update(self._gradients.loss)

    def _update(self, loss: float) -> StepResult:
        step = self._run.step
        self._gradients.add()
        self._gradients.clear()
        try:
            outcome = step.update(torch.tensor(loss, dtype=torch.float64, device=self.device), self._objective.size)
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
            self._guard.bad, self._guard.scaler_skips = [], 0
            return
        self.skipped += 1
        scaler = self._run.step.scaler
        say(f"numbers: update skipped: loss {outcome.loss:.4g}, gradient norm {outcome.grad_norm:.4g}")
        try:
            nothing = torch.empty(0, dtype=torch.int64).numpy()
            self._guard.skipped((0, self.updates + self.skipped), nothing, scaler.scale if scaler.active else None)
        except NotFinite:
            raise NumericsError(
                "three updates in a row had a loss or gradient that is not finite",
                "finite numbers; the weights are those before the first of them",
                "lower the learning rate, set clip_norm, or look for NaN in the data",
            ) from None
        except Fp16Collapse as why:
            self._run.step.fall_back()
            say(f"precision: {why}; continuing in fp32 (fp16.fallback)")

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
        if step.scaler.fallen:
            step.fall_back()
        if state["micro_batch"] is not None:
            step.use_micro_batch(min(state["micro_batch"], step.micro_batch or state["micro_batch"]))
        self._guard.load(state["numerics"])


def prepare(
    model: nn.Module,
    optimizer: Optimizer | Callable[[list[nn.Parameter]], Optimizer],
    *,
    loss: Callable[[Any, Any], Any] | None = None,
    clip_norm: float | None = None,
    accumulate: int = 1,
    gpus: str | Sequence[int] | None = None,
    optimize: Mapping[str, bool | int | float | str] | None = None,
    fp16: Mapping[str, Any] | None = None,
    deterministic: bool | str = "auto",
    limits: Mapping[str, Any] | None = None,
    quiet: bool = False,
) -> contextlib.AbstractContextManager[PreparedStep]:
    """A training step for a loop of your own, under a plan for this machine.

    The network is moved to its device when the block begins. Threads, precision and other settings of torch hold inside of the `with`
    block, and are as before after it. There are no checkpoints, records or signal handlers.

    Args:
        model: the network.
        optimizer: over its parameters, or a function of the list of trainable parameters that returns one.
        loss: a callable of (outputs, targets) that returns the mean of the samples, or one term for each; of (outputs,
            batch) if batches are mappings. None if the model returns the loss.
        clip_norm: largest gradient norm; None for no clipping.
        accumulate: batches of an update; each counts the same.
        gpus: `auto`, `none` or a list of one number.
        optimize: optimizations by name: precision, micro_batch, compile, channels_last, cpu_threads, ...
        fp16: scaling of the gradients if the precision is fp16, as in the spec.
        deterministic: as in the spec.
        limits: `gpus` and `gpu_memory`, as in the spec.
        quiet: whether to print no plan.

    Raises:
        SpecError: if an argument cannot be used.
        DeviceError: if the GPU cannot be used.
    """
    caller = sys._getframe(1)
    place = f"{Path(caller.f_code.co_filename).name}:{caller.f_lineno}:1"
    refuse = embedded_parts.refusal(place)
    if not isinstance(accumulate, int) or accumulate < 1:
        raise refuse("accumulate", f"is {accumulate!r}", "a number of batches from 1 on", "give such a number")
    for name in optimize or {}:
        if name in optimizations.off_values() and name not in USED:
            raise refuse(f"optimize.{name}", "is set", f"{', '.join(USED)}: {LEFT}", "leave it out")
    made = embedded_parts.user_optimizer(optimizer, model, refuse, stored=False)
    settings: dict[str, Any] = {
        "clip_norm": clip_norm,
        "deterministic": deterministic,
        "optimizer": embedded_parts.optimizer_spec(made.optimizer),
        "schedule": "constant",
    }
    written = {
        "name": "prepare",
        "task": "python",
        "train": settings | ({} if fp16 is None else {"fp16": dict(fp16)}),
        "optimize": dict(optimize or {}),
        "limits": embedded_call.limits_of(limits or {}, gpus, refuse),
    }
    job = embedded_call.spec_of(written, place)
    # How many samples a batch has is not known before the first.
    job = job.model_copy(update={"train": job.train.model_copy(update={"batch_size": "auto"})})
    machine = host_process.machine(detect(Path()), job)
    plan = _plan(job, machine, model)
    if not quiet:
        console().print(render(plan, job, machine))
    return _block(job, machine, plan, model, made, loss, accumulate)


def _plan(job: EmbeddedJob, machine: Hardware, model: nn.Module) -> Plan:
    """The decisions; what acts on data that the runtime reads is off."""
    found = host_process.as_started(plans.resolve(job, machine, inspection.inspect_network(model)), machine)
    off, rows = optimizations.off_values(), []
    for row in found.decisions:
        process = row.source == "process" or row.name in USED
        left = replace(row.learned(off[row.name], "choice", LEFT), effect=str(Effect.EXACT), provisional=False)
        rows.append(row if process else left)
    return found.with_rows(rows)


@contextlib.contextmanager
def _block(
    job: EmbeddedJob,
    machine: Hardware,
    plan: Plan,
    model: nn.Module,
    optimizer: UserOptimizer,
    loss: Callable[[Any, Any], Any] | None,
    accumulate: int,
) -> Iterator[PreparedStep]:
    """Apply the plan, and undo what is process-wide."""
    with host_process.settings_as_found():
        device = torch.device("cuda:0" if machine.gpu else "cpu")
        torch_setup.begin(job, machine, device)
        model.to(device)
        built = optimizer.build(model)
        forms = Forms(model, loss)
        objective = LoopLoss(forms, accumulate)
        options = StepOptions(forward=forms.forward, report_memory=say, report_compile=say, report_numbers=say)
        step = LoopStep(model, built, cast(Any, objective), job.train.clip_norm, device, options, forms=forms)
        run = LoopRun(job, machine, plan, device, model, built, step)
        for optimization in optimizations.every():
            value = plan.value(optimization.name)
            if optimization.name in USED and value != optimization.off:
                optimization.apply(cast(AssembledRun, run), value)
        run.step.state.strict = device.type == "cuda" and job.train.is_deterministic(on_gpu=True)
        prepared = PreparedStep(run, forms, objective, accumulate)
        prepared._open = True
        try:
            yield prepared
        finally:
            prepared._open = False
            if left := prepared._gradients.count:
                say(f"prepare: {left} batches after the last update were not used; flush() updates with them")
