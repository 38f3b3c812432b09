"""Arms: a plan in use on a copy of the network, its numbers against plain arithmetic, and the verdict on a pair of arms."""

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
from runtime.tuning.paired_timing import PairedTiming

MARGIN = 1.02
"""A value must win by this much, and in three of four pairs, to replace what we would do anyway."""
CHECKED = 4
"""Steps over which numbers are compared."""
SETTLING = 32
"""Skipped steps after which a scale that is still too high is no beginning."""
TOLERANCE = {Effect.EXACT: 1e-6, Effect.ROUNDING: 1e-3}
SHORT_FORMAT = 5e-2
"""Relative difference of loss that a format of 8 to 11 bits of mantissa may show over the checked steps."""
SHORT = ("bf16", "fp16", "tf32")
Numbers = Sequence[tuple[float, float]]
"""Loss and gradient norm of each step."""


class TooSlow(Exception):
    """Steps that take so long that there is no time left to compare them."""


@dataclass
class Variant:
    """One plan in use: a copy of the network that trains on its own."""

    run: Run
    batches: Iterator[Batch]
    until: float = math.inf
    """When its numbers must be known, on the monotonic clock."""

    def steps(self, count: int) -> float:
        """Seconds of `count` steps."""
        start = time.perf_counter()
        for _ in range(count):
            self.step()
        if self.run.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - start

    def step(self) -> tuple[float, float]:
        """One step that counts; its loss and gradient norm.

        A scale of fp16 begins too high: it comes down by steps that are skipped and leave everything as it was.
        """
        run, batch = self.run, next(self.batches)
        run.set_rate()
        for _ in range(SETTLING):
            outcome = run.step(run.mixed(run.prepared(batch, 0)), run.step_seed())
            if outcome.finite or not run.step.scaler.active:
                break
        run.counters.step += 1
        return outcome.loss, outcome.grad_norm

    def numbers(self, quiet: bool) -> Numbers:
        """Numbers of the next steps; `quiet` without dropout, where two ways would draw it differently.

        Raises:
            Slow: if they are not known in time.
        """
        if quiet:
            hush(self.run)
        found, start = list[tuple[float, float]](), time.monotonic()
        while len(found) < CHECKED:
            found.append(self.step())
            if (now := time.monotonic()) > self.until and len(found) < CHECKED:
                raise TooSlow(f"not compared, {now - start:.0f} s for its first {len(found)} of {CHECKED} steps")
        self.run.train_mode()
        return found


def hush(run: Run) -> None:
    """No dropout until the next `train_mode`."""
    for module in run.model.modules():
        # BatchNorm would take its stored statistics, and cuDNN's recurrent kernels go backward in training only.
        # A block that is recomputed would keep its activations.
        if not isinstance(module, nn.RNNBase | nn.modules.batchnorm._BatchNorm | RecomputedBlock):
            module.training = False


@dataclass(frozen=True)
class Verdict:
    """Whether a value replaces the incumbent, and what was seen."""

    wins: bool
    text: str
    ratio: float = 0.0
    """How many times faster; 0 for a value that computes wrong numbers or could not be measured."""


def judged(pair: PairedTiming, cost: float, spent: float) -> Verdict:
    """The verdict on a value whose numbers are right.

    Args:
        pair: challenger against incumbent.
        cost: seconds that it takes once.
        spent: seconds that the whole run takes with the incumbent.
    """
    text = f"{pair.spread()}, loss ok" + (f", {cost:.0f} s to compile" if cost else "")
    pays = spent * (1 - 1 / pair.median) > cost
    return Verdict(pair.median >= MARGIN and pair.middle()[0] > 1 and pays, text, pair.median)


def differs(numbers: Numbers, reference: Numbers, tolerance: float, against: str = "everything off") -> str | None:
    """Where losses are further from the reference than allowed, and by how much; gradients may be off ten times that."""
    for number, ((loss, norm), (true_loss, true_norm)) in enumerate(zip(numbers, reference, strict=True), start=1):
        loss_off = abs(loss - true_loss) / max(abs(true_loss), 1e-6)
        norm_off = abs(norm - true_norm) / max(abs(true_norm), 1e-6)
        if not loss_off <= tolerance:
            return f"loss {loss:.4g} at step {number}, {true_loss:.4g} with {against}"
        if not norm_off <= 10 * tolerance:
            return f"gradient norm {norm:.4g} at step {number}, {true_norm:.4g} with {against}"
    return None


def tolerance(plan: Plan) -> float:
    """How far a plan's numbers may be from everything off: by its number format, as all that come by themselves round."""
    prefix = plan.value("prefix_precision") if plan.value("feature_cache") else None
    return SHORT_FORMAT if {plan.value("precision"), prefix} & set(SHORT) else TOLERANCE[Effect.ROUNDING]


def redraws(optimization: Optimization, plan: Plan, facts: Workload, on_gpu: bool) -> bool:
    """Whether it draws other dropout from the same distribution, so that numbers can only be compared without."""
    drops = facts.has("Dropout") or facts.has("LSTM") or facts.has("GRU")
    return drops and (optimization.redraws or (plan.value("compile") is not False and on_gpu))


def all_off(plan: Plan, quiet: bool) -> Plan:
    """Everything off that can still be switched in this process; `quiet`, also what would draw other dropout.

    What changes what is learned, as the job asks, stays: it is no rounding that numbers could be set beside.
    """
    return plan.with_values(
        {
            o.name: o.off
            for o in optimizations.every()
            if o.stage is not Stage.PROCESS and (quiet or not o.redraws) and plan.row(o.name).effect != Effect.TRAINING
        }
    )
