"""A variant trains a copy of the network under a plan; its numbers are checked against fp32, its speed against
another.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from runtime import optimizations
from runtime.data.dataset import Batch
from runtime.job.workload import Workload
from runtime.models.recompute import RecomputedBlock
from runtime.optimizations import Effect, Optimization, Stage
from runtime.plan.plan import Plan
from runtime.training.run import Run
from runtime.training.step_result import StepResult
from runtime.tuning.paired_timing import PairedTiming

MARGIN = 1.02
"""Speedup, in three of four pairs, that a value needs to replace the default."""
CHECKED = 4
"""Steps whose losses and gradient norms are compared."""
SETTLING = 32
"""Largest number of skipped steps until the fp16 scale must fit."""
TOLERANCE = {Effect.EXACT: 1e-6, Effect.ROUNDING: 1e-3}
SHORT_FORMAT = 5e-2
"""Relative difference of the loss that is allowed over the checked steps for formats with 8 to 11 bits of mantissa."""
SHORT = ("bf16", "fp16", "tf32")
Numbers = Sequence[tuple[float, float]]
"""Loss and gradient norm of each step."""


class TooSlow(Exception):
    """Steps take so long that there is no time left to compare them."""


@dataclass
class Variant:
    """A copy of the network that trains under a plan."""

    run: Run
    batches: Iterator[Batch]
    until: float = math.inf
    """Deadline for its numbers, on the monotonic clock."""
    checked: int = CHECKED
    """Steps whose numbers are read."""
    settled: bool = False
    """Whether the fp16 scale fits."""

    def steps(self, count: int) -> float:
        """Seconds of `count` steps."""
        start = time.perf_counter()
        for _ in range(count):
            self.step()
        if self.run.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - start

    def step(self) -> StepResult:
        """Train one step. Its result is not read, unless the fp16 scale is still to be found: a training does not wait
        for it either.

        The initial scale of fp16 is too high; skipped steps lower it and change nothing else.
        """
        run, batch = self.run, next(self.batches)
        run.set_rate()
        for _ in range(SETTLING):
            result = run.step(run.mixed(run.prepared(batch, 0)), run.own_parts(len(batch)))
            if self.settled or not run.step.scaler.active or result.finite:
                break
        self.settled = True
        run.counters.step += 1
        return result

    def numbers(self, quiet: bool) -> Numbers:
        """Losses and gradient norms of the next steps; `quiet` without dropout, if the variants' masks would differ.

        Raises:
            TooSlow: if they are not known by the deadline.
        """
        if quiet:
            hush(self.run)
        found, start = list[tuple[float, float]](), time.monotonic()
        while len(found) < self.checked:
            found.append(self.step().read())
            if (now := time.monotonic()) > self.until and len(found) < self.checked:
                raise TooSlow(f"not compared: {now - start:.0f} s for the first {len(found)} of {self.checked} steps")
        self.run.train_mode()
        return found


def hush(run: Run) -> None:
    """Turn dropout off until the next `train_mode`."""
    for module in run.model.modules():
        # Stay in training mode: BatchNorm would use its running statistics, cuDNN's recurrent kernels have a backward
        # pass in training only, and a recomputed block would save its activations.
        if not isinstance(module, nn.RNNBase | nn.modules.batchnorm._BatchNorm | RecomputedBlock):
            module.training = False


@dataclass(frozen=True)
class Verdict:
    """Whether a value replaces the baseline, and the result."""

    wins: bool
    text: str
    ratio: float = 0.0
    """Speed ratio; 0 for a value that computes wrong numbers or could not be measured."""


def judged(pair: PairedTiming, cost: float, spent: float) -> Verdict:
    """The verdict on a value whose numbers are right.

    Args:
        pair: candidate against baseline.
        cost: seconds that it takes once, for compilation.
        spent: seconds of the whole run with the baseline.
    """
    text = f"{pair.spread()}, loss ok" + (f", {cost:.0f} s to compile" if cost else "")
    pays = spent * (1 - 1 / pair.median) > cost
    return Verdict(pair.median >= MARGIN and pair.middle()[0] > 1 and pays, text, pair.median)


def differs(numbers: Numbers, reference: Numbers, tolerance: float, against: str = "everything off") -> str | None:
    """The first step whose loss differs from the reference by more than allowed; gradient norms may differ ten
    times that.
    """
    for number, ((loss, norm), (true_loss, true_norm)) in enumerate(zip(numbers, reference, strict=True), start=1):
        loss_off = abs(loss - true_loss) / max(abs(true_loss), 1e-6)
        norm_off = abs(norm - true_norm) / max(abs(true_norm), 1e-6)
        if not loss_off <= tolerance:
            return f"loss {loss:.4g} at step {number}, {true_loss:.4g} with {against}"
        if not norm_off <= 10 * tolerance:
            return f"gradient norm {norm:.4g} at step {number}, {true_norm:.4g} with {against}"
    return None


def tolerance(plan: Plan) -> float:
    """Allowed difference of a plan's numbers from everything off, by number format; values chosen by default may
    round.
    """
    prefix = plan.value("prefix_precision") if plan.value("feature_cache") else None
    return SHORT_FORMAT if {plan.value("precision"), prefix} & set(SHORT) else TOLERANCE[Effect.ROUNDING]


def redraws(optimization: Optimization, plan: Plan, facts: Workload, on_gpu: bool) -> bool:
    """Whether it changes the random numbers of dropout, so that numbers can only be compared without dropout."""
    drops = facts.has("Dropout") or facts.has("LSTM") or facts.has("GRU")
    return drops and (optimization.redraws or (plan.value("compile") is not False and on_gpu))


def all_off(plan: Plan, quiet: bool) -> Plan:
    """The plan with everything off that this process can switch; `quiet`: also what changes the random numbers of
    dropout.

    Requested values that change the training stay on: their effect is no rounding error.
    """
    return plan.with_values(
        {
            o.name: o.off
            for o in optimizations.every()
            if o.stage is not Stage.PROCESS and (quiet or not o.redraws) and plan.row(o.name).effect != Effect.TRAINING
        }
    )
